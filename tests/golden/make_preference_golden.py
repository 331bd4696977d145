#!/usr/bin/env python3
"""Writes preference_<name>.safetensors: what TRL's trainers compute of pairs, in float64, on the models of other fixtures.

    python3 make_preference_golden.py           write every fixture next to this script
    python3 make_preference_golden.py a d       write only these
    python3 make_preference_golden.py --check   recompute and compare with the committed files (relative 1e-10)

Needs trl and peft beside what the other scripts need; not part of CI. Losses are those of TRL's own
_compute_loss on batches of its own collator; the reference is the model with its adapters disabled, as TRL has it.

    name  base       what it is for
    a     gpt2_a     learned positions, transposed layers, all linear layers of the blocks
    b     decoder_a  Llama: queries, values, up and down
    c     decoder_a  the whole model, whose reference is a copy of it as it was: what precompute_ref_log_probs caches
    d     decoder_a  b's adapter as a PeftModel that has learned: TRL's reference is a frozen copy of it ("reference": "start")

Five pairs of 1 to 5 tokens of prompt and 1 to 6 of answer, cut at 8. Tensors: adapters under PEFT's names (F32);
lengths (10), input_ids and completion, the rows of TRL's collator without their padding, the five chosen ones
first (I64); of each loss <key>.loss, <key>.grad.<name>, <key>.rewards/chosen and what else TRL logs,
<key>.adamw_losses, <key>.adamw_grad_norms (F64). Losses are those of DPOTrainer._compute_loss; simpo, and
sigmoid_smoothed (sigmoid with label_smoothing, of log ratios), of CPOTrainer.cpo_loss; orpo of ORPOTrainer's
get_batch_loss_metrics on the same rows. TRL's fused head rounds to
float32, so that log probabilities come from the model's logits in float64; the script asserts that GPT-2's losses
through TRL's head agree to 1e-6. Metadata: base, adapter_config, losses (key to settings), adamw, seed.
Made with trl 1.16.0, peft 0.21.2, transformers 5.24.0.
"""

import contextlib
import copy
import json
import pathlib
import tempfile
import types
import warnings

import numpy as np
import peft
import torch
import trl
from datasets import Dataset
from peft import LoraConfig, get_peft_model_state_dict
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast
from trl import DPOConfig, DPOTrainer
from trl.experimental.cpo import CPOTrainer
from trl.experimental.orpo import ORPOTrainer

import make_decoder_golden as decoders
import make_golden as gpt2
from make_golden import ADAMW, CLIP_NORM, STEPS, run_cases, train_adamw, versions
from make_peft_golden import TrainedAlone, draw

# Tokens of prompt, chosen and rejected of each pair: unequal ones, answers of one token, no shared length.
PAIRS = [(3, 4, 2), (1, 1, 5), (5, 2, 2), (2, 6, 1), (4, 1, 3)]
MAX_LENGTH = 8  # a position less than the longest model here has; cuts the fourth chosen answer to none but its length


def case(seed, base, losses, continued=False, **config):
    return {"seed": seed, "base": base, "losses": losses, "continued": continued, "config": config}


# Of the key loss_type; "sigmoid_smoothed" is sigmoid with label_smoothing, which TRL has in its CPO trainer alone: there it is taken of
# log ratios. simpo is that trainer's too; orpo has a trainer of its own.
ALL = ["sigmoid", "sigmoid_smoothed", "hinge", "ipo", "sigmoid_norm", "nca_pair", "sppo_hard", "apo_zero", "apo_down", "simpo", "orpo"]
CASES = {
    "a": case(501, "gpt2_a", ALL, r=3, lora_alpha=5, target_modules=["c_attn", "c_fc", "c_proj"]),
    "c": case(503, "decoder_a", ["sigmoid", "ipo"]),
    "b": case(502, "decoder_a", ALL, r=2, lora_alpha=6, target_modules=["q_proj", "v_proj", "up_proj", "down_proj"]),
    "d": case(504, "decoder_a", ["sigmoid", "ipo", "apo_zero"], continued=True, r=2, lora_alpha=6, target_modules=["q_proj", "v_proj", "up_proj", "down_proj"]),
}
BETA = {"sppo_hard": 0.5, "ipo": 0.4, "simpo": 2.0}  # else 0.3
SMOOTHING, GAMMA = 0.1, 0.7


def draw_pairs(vocabulary, rng):
    token = lambda n: [int(t) for t in rng.integers(1, vocabulary, n)]
    return [{"prompt_ids": token(p), "chosen_ids": token(c), "rejected_ids": token(r)} for p, c, r in PAIRS]


class OnTokens(DPOTrainer):
    """Of tokens already: what they mean is not the trainer's to say."""

    def _prepare_dataset(self, dataset, *args):
        return dataset


def lora_of(base, config):
    return LoraConfig(task_type="CAUSAL_LM", fan_in_fan_out=base.startswith("gpt2"), **config)


def set_values(trained, values, rng):
    """Those of the first loss, to all of them."""
    with torch.no_grad():
        for key, parameter in trained.items():
            if key not in values:
                values[key] = draw(key, tuple(parameter.shape), rng)
            parameter.copy_(torch.from_numpy(values[key]))


def trainer_of(model, pairs, config, base, folder, **settings):
    words = {f"<{i}>": i for i in range(model.config.vocab_size)}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="<0>")), pad_token="<0>",
                                        eos_token="<0>")
    args = DPOConfig(output_dir=folder, max_length=MAX_LENGTH, report_to=[], bf16=False, gradient_checkpointing=False, use_cpu=True,
                     **settings)
    lora = None if not config or isinstance(model, peft.PeftModel) else lora_of(base, config)
    reference = None if config else copy.deepcopy(model)
    return OnTokens(model=model, ref_model=reference, args=args, train_dataset=Dataset.from_list(pairs), processing_class=tokenizer,
                    peft_config=lora)


def base_of(name):
    kind, letter = name.split("_")
    if kind == "gpt2":
        return gpt2.build_model(gpt2.CASES[letter])[0]
    return decoders.build_model(decoders.CASES[letter])[0]


def score_in_double(wrapped, base):
    """TRL's fused head rounds to float32. The same log probabilities of labels in float64, from the model's logits; families that
    compute something in float32 whatever the dtype do so in float64 too."""
    forward = wrapped.forward
    mode = decoders.InDouble if base.startswith("decoder") else contextlib.nullcontext

    def scored(*arguments, labels, fused_lm_head, **keywords):
        assert fused_lm_head
        with mode():
            logits = forward(*arguments, **keywords).logits
        assert logits.dtype == torch.float64
        labels = labels[:, 1:]
        chosen = torch.log_softmax(logits[:, :-1], -1).gather(-1, labels.clamp(min=0)[..., None])[..., 0]
        nothing = torch.zeros_like(chosen)  # what is logged alone
        return types.SimpleNamespace(log_probs=chosen.masked_fill(labels == -100, 0), entropy=nothing, mean_logits=nothing,
                                     is_top1=nothing.bool())

    wrapped.forward = scored


class OrpoOnRows(ORPOTrainer):
    """get_batch_loss_metrics and what it calls, without what a run needs."""

    def __init__(self, beta):
        self.beta = beta
        self.is_encoder_decoder, self.padding_value, self.aux_loss_enabled = False, 0, False
        self.accelerator = types.SimpleNamespace(device="cpu", gather_for_metrics=lambda value: value)


def loss_of_orpo(trainer, model, batch):
    """The model's own forward: that trainer takes whole logits."""
    rows = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"],
            "labels": batch["input_ids"].masked_fill(batch["completion_mask"] == 0, -100)}
    inputs = {f"{side}_{key}": half for key, value in rows.items() for side, half in zip(("chosen", "rejected"), value.chunk(2))}
    # It asks for float32 log probabilities in the midst.
    with decoders.InDouble():
        loss, metrics = OrpoOnRows(BETA.get("orpo", 0.3)).get_batch_loss_metrics(model, inputs)
    trainer._metrics["train"].update({key: [value] for key, value in metrics.items() if key in METRICS + ORPO_METRICS})
    return loss


ORPO_METRICS = ("nll_loss", "log_odds_ratio", "log_odds_chosen")
METRICS = ("rewards/chosen", "rewards/rejected", "rewards/accuracies", "rewards/margins", "logps/chosen", "logps/rejected")


def loss_of_cpo(trainer, wrapped, batch, loss_type):
    """cpo_loss of TRL's CPO trainer, and what that logs."""
    labels = batch["input_ids"].masked_fill(batch["completion_mask"] == 0, -100)
    inputs = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"], "labels": labels, "fused_lm_head": True}
    sums = wrapped(**inputs).log_probs.sum(1)
    logps = sums
    if loss_type == "simpo":
        logps = sums / (labels[:, 1:] != -100).sum(1)
    else:
        with torch.no_grad(), wrapped.disable_adapter():
            reference = wrapped(**inputs).log_probs.sum(1)
        logps = sums - reference
    settings = types.SimpleNamespace(loss_type=loss_type.split("_")[0], beta=BETA.get(loss_type, 0.3), alpha=0.0, simpo_gamma=GAMMA,
                                     label_smoothing=0.0 if loss_type == "simpo" else SMOOTHING,
                                     accelerator=types.SimpleNamespace(device="cpu"))
    losses, chosen, rejected = CPOTrainer.cpo_loss(settings, *logps.chunk(2))
    shown = logps if loss_type == "simpo" else sums
    values = [chosen, rejected, (chosen > rejected).double(), chosen - rejected, *shown.detach().chunk(2)]
    trainer._metrics["train"].update({key: [value.mean().item()] for key, value in zip(METRICS, values)})
    return losses.mean()


def compute(name):
    spec = CASES[name]
    rng = np.random.default_rng(spec["seed"])
    tensors, pairs, values, written = {}, None, {}, None
    for loss_type in spec["losses"]:
        model = base_of(spec["base"])
        pairs = pairs or draw_pairs(model.config.vocab_size, rng)
        if spec["continued"]:
            model = peft.get_peft_model(model, lora_of(spec["base"], spec["config"]))
            set_values({key: value for key, value in model.named_parameters() if value.requires_grad}, values, rng)
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            of_cpo, of_orpo = loss_type in ("simpo", "sigmoid_smoothed"), loss_type == "orpo"
            trainer = trainer_of(model, pairs, spec["config"], spec["base"], folder,
                                 loss_type="sigmoid" if of_cpo or of_orpo else loss_type,
                                 beta=BETA.get(loss_type, 0.3))
            wrapped = trainer.model.double()
            trained = {key: value for key, value in wrapped.named_parameters() if value.requires_grad}
            if spec["continued"]:
                copies = [key for key in dict(wrapped.named_parameters()) if ".ref." in key]
                assert len(copies) == len(values) and set(trained) == set(values), (copies, list(trained))
            elif spec["config"]:
                set_values(trained, values, rng)
            if written is None and spec["config"]:
                wrapped.save_pretrained(folder)
                written = json.loads((pathlib.Path(folder) / "adapter_config.json").read_text())
                written["target_modules"].sort()
        batch = trainer.data_collator(pairs)
        wrapped.train()
        own = None if of_cpo or of_orpo or spec["base"].startswith("decoder") else trainer._compute_loss(wrapped, batch, False).item()
        if not of_orpo:
            score_in_double(wrapped, spec["base"])
        if not spec["config"]:
            score_in_double(trainer.ref_model.double(), spec["base"])

        def loss_of_batch():
            if of_orpo:
                return loss_of_orpo(trainer, wrapped, batch)
            if of_cpo:
                return loss_of_cpo(trainer, wrapped, batch, loss_type)
            return trainer._compute_loss(wrapped, batch, False)

        trainer._metrics["train"].clear()
        loss = loss_of_batch()
        assert loss.dtype == torch.float64, loss.dtype
        assert own is None or abs(own - loss.item()) < 1e-6 * abs(own), (own, loss.item())
        metrics = {key: value[-1] for key, value in trainer._metrics["train"].items()}
        loss.backward()
        saved = get_peft_model_state_dict(wrapped) if spec["config"] else dict(wrapped.named_parameters())
        name_of = {}
        for key, parameter in trained.items():
            found = [other for other, value in saved.items() if value.data_ptr() == parameter.data_ptr()]
            assert len(found) == 1, (key, found)
            name_of[key] = found[0]
        for key, parameter in trained.items():
            if spec["config"]:
                tensors[name_of[key]] = values[key]
            elif loss_type != spec["losses"][0]:
                continue
            tensors[f"{loss_type}.grad.{name_of[key]}"] = parameter.grad.numpy().copy()
        tensors[f"{loss_type}.loss"] = np.array(loss.item())
        for metric in METRICS + (ORPO_METRICS if of_orpo else ()):
            tensors[f"{loss_type}.{metric}"] = np.array(float(metrics[metric]))
        losses, norms = train_adamw(TrainedAlone(trained), loss_of_batch)
        assert losses[0] == loss.item()
        tensors[f"{loss_type}.adamw_losses"], tensors[f"{loss_type}.adamw_grad_norms"] = losses, norms
    # The rows that the collator made, without padding: chosen and rejected of each pair, and which tokens are of the answers.
    lengths = batch["attention_mask"].sum(1).tolist()
    tensors["lengths"] = np.array(lengths, dtype=np.int64)
    tensors["input_ids"] = np.concatenate([row[:n] for row, n in zip(batch["input_ids"].numpy(), lengths)]).astype(np.int64)
    tensors["completion"] = np.concatenate([row[:n] for row, n in zip(batch["completion_mask"].numpy(), lengths)]).astype(np.int64)
    metadata = {
        "format": "pt",
        "fixture": f"preference_{name}",
        "base": spec["base"],
        **({"adapter_config": json.dumps(written, sort_keys=True)} if written else {}),
        **({"reference": "start"} if spec["continued"] else {}),
        "losses": json.dumps({loss_type: {"loss_type": loss_type.removesuffix("_smoothed"), "beta": BETA.get(loss_type, 0.3),
                                          "label_smoothing": SMOOTHING if loss_type.endswith("_smoothed") else 0.0,
                                          "simpo_gamma": GAMMA} for loss_type in spec["losses"]}, sort_keys=True),
        "adamw": json.dumps({**ADAMW, "clip_norm": CLIP_NORM, "steps": STEPS, "decay_min_rank": 2}, sort_keys=True),
        "seed": str(spec["seed"]),
        "versions": json.dumps({**versions(), "peft": peft.__version__, "trl": trl.__version__}, sort_keys=True),
    }
    return tensors, metadata


def main():
    run_cases(__doc__, CASES, "preference", compute, floor=1e-6)


if __name__ == "__main__":
    main()
