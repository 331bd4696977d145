#!/usr/bin/env python3
"""Writes kto_<name>.safetensors: what TRL's KTOTrainer computes of single answers, in float64, on the models of other fixtures.

    python3 make_kto_golden.py           write every fixture next to this script
    python3 make_kto_golden.py a         write only this
    python3 make_kto_golden.py --check   recompute and compare with the committed files (relative 1e-10)

Needs trl and peft beside what the other scripts need; not part of CI. Losses are those of TRL's own _compute_loss on a
batch of its own collator; the reference is the model with its adapters disabled, or of c a copy of it as it was.

    name  base       what it is for
    a     gpt2_a     learned positions, transposed layers, all linear layers of the blocks
    b     decoder_a  Llama: queries, values, up and down
    c     decoder_a  the whole model, whose reference is what precompute_ref_log_probs caches

Five answers, three of them desirable, of 1 to 5 tokens of prompt and 1 to 6 of answer, cut at 8; each prompt is compared with the answer
of the one before, the first with the last's, as TRL rotates a batch. Tensors: adapters under PEFT's names (F32); label
(5), lengths (5), input_ids and completion, the rows of TRL's collator without their padding, and kl_lengths, kl_input_ids,
kl_completion, those of the mismatched ones (I64); of each loss <key>.loss, <key>.grad.<name>, what TRL logs,
<key>.adamw_losses, <key>.adamw_grad_norms (F64). Log probabilities come from the model's logits in float64, as in
make_preference_golden.py. Metadata: base, adapter_config, losses (key to settings), adamw, seed.
Made with trl 1.16.0, peft 0.21.2, transformers 5.24.0.
"""

import copy
import json
import pathlib
import tempfile
import warnings

import numpy as np
import peft
import torch
import trl
from datasets import Dataset
from peft import LoraConfig, get_peft_model_state_dict
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast
from trl import KTOConfig, KTOTrainer

from make_golden import ADAMW, CLIP_NORM, STEPS, run_cases, train_adamw, versions
from make_peft_golden import TrainedAlone, draw
from make_preference_golden import MAX_LENGTH, base_of, score_in_double

# Tokens of prompt and answer, and whether it is desirable.
ANSWERS = [(3, 4, True), (1, 5, False), (5, 2, True), (2, 7, True), (4, 1, False)]
METRICS = ("rewards/chosen", "rewards/rejected", "rewards/margins", "logps/chosen", "logps/rejected", "kl")
SETTINGS = {
    "kto": {"loss_type": "kto", "beta": 0.3},
    "kto_weighted": {"loss_type": "kto", "beta": 0.1, "desirable_weight": 0.7, "undesirable_weight": 1.4},
    "apo_zero_unpaired": {"loss_type": "apo_zero_unpaired", "beta": 0.2, "undesirable_weight": 1.2},
}


def case(seed, base, losses, **config):
    return {"seed": seed, "base": base, "losses": losses, "config": config}


CASES = {
    "a": case(523, "gpt2_a", list(SETTINGS), r=3, lora_alpha=5, target_modules=["c_attn", "c_fc", "c_proj"]),
    "b": case(521, "decoder_a", list(SETTINGS), r=2, lora_alpha=6, target_modules=["q_proj", "v_proj", "up_proj", "down_proj"]),
    "c": case(522, "decoder_a", ["kto"]),
}


def draw_answers(vocabulary, rng):
    token = lambda n: [int(t) for t in rng.integers(1, vocabulary, n)]
    rows = [{"prompt_ids": token(p), "completion_ids": token(c), "label": label} for p, c, label in ANSWERS]
    for i, row in enumerate(rows):
        row["KL_completion_ids"] = rows[i - 1]["completion_ids"]
    return rows


class OnTokens(KTOTrainer):
    """Of tokens already: what they mean is not the trainer's to say."""

    def _prepare_dataset(self, dataset, *args):
        return dataset


def trainer_of(model, rows, config, base, folder, **settings):
    words = {f"<{i}>": i for i in range(model.config.vocab_size)}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="<0>")), pad_token="<0>",
                                        eos_token="<0>")
    args = KTOConfig(output_dir=folder, max_length=MAX_LENGTH, report_to=[], bf16=False, gradient_checkpointing=False, use_cpu=True,
                     per_device_train_batch_size=len(rows), **settings)
    lora = LoraConfig(task_type="CAUSAL_LM", fan_in_fan_out=base.startswith("gpt2"), **config) if config else None
    reference = None if config else copy.deepcopy(model)
    return OnTokens(model=model, ref_model=reference, args=args, train_dataset=Dataset.from_list(rows), processing_class=tokenizer,
                    peft_config=lora)


def without_padding(batch, of):
    lengths = batch[f"{of}attention_mask"].sum(1).tolist()
    cut = lambda rows: np.concatenate([row[:n] for row, n in zip(rows.numpy(), lengths)]).astype(np.int64)
    return {"lengths": np.array(lengths, dtype=np.int64), "input_ids": cut(batch[f"{of}input_ids"]),
            "completion": cut(batch[f"{of}completion_mask"])}


def compute(name):
    spec = CASES[name]
    rng = np.random.default_rng(spec["seed"])
    tensors, rows, values, written = {}, None, {}, None
    for key in spec["losses"]:
        model = base_of(spec["base"])
        rows = rows or draw_answers(model.config.vocab_size, rng)
        settings = SETTINGS[key]
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainer = trainer_of(model, rows, spec["config"], spec["base"], folder, **settings)
            wrapped = trainer.model.double()
            trained = {name: value for name, value in wrapped.named_parameters() if value.requires_grad}
            with torch.no_grad():
                for parameter_name, parameter in trained.items():
                    if not spec["config"]:
                        break
                    if parameter_name not in values:
                        values[parameter_name] = draw(parameter_name, tuple(parameter.shape), rng)
                    parameter.copy_(torch.from_numpy(values[parameter_name]))
            if written is None and spec["config"]:
                wrapped.save_pretrained(folder)
                written = json.loads((pathlib.Path(folder) / "adapter_config.json").read_text())
                written["target_modules"].sort()
        batch = trainer.data_collator(rows)
        wrapped.train()
        score_in_double(wrapped, spec["base"])
        if not spec["config"]:
            score_in_double(trainer.ref_model.double(), spec["base"])
        kls = []

        def loss_of_batch():
            loss = trainer._compute_loss(wrapped, batch, False)
            kls.append(trainer._metrics["train"]["kl"][-1])
            return loss

        trainer._metrics["train"].clear()
        loss = loss_of_batch()
        assert loss.dtype == torch.float64, loss.dtype
        metrics = {metric: value[-1] for metric, value in trainer._metrics["train"].items()}
        loss.backward()
        saved = get_peft_model_state_dict(wrapped) if spec["config"] else dict(wrapped.named_parameters())
        for parameter_name, parameter in trained.items():
            found = [other for other, value in saved.items() if value.data_ptr() == parameter.data_ptr()]
            assert len(found) == 1, (parameter_name, found)
            if spec["config"]:
                tensors[found[0]] = values[parameter_name]
            tensors[f"{key}.grad.{found[0]}"] = parameter.grad.numpy().copy()
        tensors[f"{key}.loss"] = np.array(loss.item())
        for metric in METRICS:
            tensors[f"{key}.{metric}"] = np.array(float(metrics[metric]))
        losses, norms = train_adamw(TrainedAlone(trained), loss_of_batch)
        assert losses[0] == loss.item()
        # Some steps are compared with something, or the test would not see it.
        assert settings["loss_type"] != "kto" or max(kls) > 1e-3, kls
        tensors[f"{key}.adamw_losses"], tensors[f"{key}.adamw_grad_norms"] = losses, norms
        if settings["loss_type"] == "kto":
            tensors.update({f"kl_{part}": value for part, value in without_padding(batch, "KL_").items()})
    tensors.update(without_padding(batch, ""))
    tensors["label"] = np.array([row["label"] for row in rows], dtype=np.int64)
    metadata = {
        "format": "pt",
        "fixture": f"kto_{name}",
        "base": spec["base"],
        **({"adapter_config": json.dumps(written, sort_keys=True)} if written else {}),
        "losses": json.dumps({key: SETTINGS[key] for key in spec["losses"]}, sort_keys=True),
        "adamw": json.dumps({**ADAMW, "clip_norm": CLIP_NORM, "steps": STEPS, "decay_min_rank": 2}, sort_keys=True),
        "seed": str(spec["seed"]),
        "versions": json.dumps({**versions(), "peft": peft.__version__, "trl": trl.__version__}, sort_keys=True),
    }
    return tensors, metadata


def main():
    run_cases(__doc__, CASES, "kto", compute, floor=1e-6)


if __name__ == "__main__":
    main()
