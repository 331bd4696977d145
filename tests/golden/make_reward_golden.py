#!/usr/bin/env python3
"""Writes reward_<name>.safetensors: what TRL's RewardTrainer computes of pairs, in float64, on the models of other fixtures.

    python3 make_reward_golden.py           write every fixture next to this script
    python3 make_reward_golden.py a b       write only these
    python3 make_reward_golden.py --check   recompute and compare with the committed files (relative 1e-10)

Needs trl beside what the other scripts need; not part of CI. Losses and what is logged are those of RewardTrainer.compute_loss
on the batch of its own collator, of a *ForSequenceClassification of one label with the weights of a fixture and a drawn `score`.

    name  base       what it is for
    a     gpt2_a     learned positions, transposed layers, a layer norm before the head
    b     decoder_a  Llama: a root mean square norm before the head

Five pairs of sequences of 2 to 8 tokens; two end with the token of padding, so that the last before it is read. Tensors: the
model's weights under transformers' names (F32); lengths (10), input_ids, the five chosen ones first (I64); margins (5, F32);
of each setting <key>.loss, <key>.accuracy and what else TRL logs, <key>.adamw_losses, <key>.adamw_grad_norms (F64); of the
setting with both, grad.<name> of every weight (F64); rewards (10), as the model gives them (F64). Metadata: base, config (what
save_pretrained writes), settings (key to margins and center_rewards_coefficient), adamw, seed.
Made with trl 1.16.0, transformers 5.24.0.
"""

import collections
import json
import pathlib
import tempfile
import types

import numpy as np
import torch
import transformers
import trl
from trl import RewardTrainer
from trl.trainer.reward_trainer import DataCollatorForPreference

import make_decoder_golden as decoders
from make_golden import ADAMW, CLIP_NORM, STEPS, run_cases, train_adamw, versions
from make_preference_golden import base_of

PAD = 0
LENGTHS = [(7, 6), (2, 6), (8, 8), (8, 4), (4, 6)]  # of the chosen and the rejected sequence of each pair
PADDED = {(1, 1): 1, (3, 0): 2}  # (pair, side): tokens of padding at its end
MARGINS = [0.5, 0.0, -0.25, 1.0, 0.125]
SETTINGS = {"plain": (False, None), "margins": (True, None), "centered": (True, 0.05)}
METRICS = ("accuracy", "margin", "mean_reward", "min_reward", "max_reward")


def case(seed, base, model):
    return {"seed": seed, "base": base, "model": model}


CASES = {"a": case(601, "gpt2_a", "GPT2ForSequenceClassification"), "b": case(602, "decoder_a", "LlamaForSequenceClassification")}


class OnRows(RewardTrainer):
    """compute_loss, without what a run needs."""

    def __init__(self, model, coefficient):
        self.model = model
        self.args = types.SimpleNamespace(center_rewards_coefficient=coefficient)
        self.accelerator = types.SimpleNamespace(gather_for_metrics=lambda value: value, gather=lambda value: value)
        self._metrics = {"train": collections.defaultdict(list), "eval": collections.defaultdict(list)}
        self._total_train_tokens, self._tp_size = 0, 1


def build(spec):
    base = base_of(spec["base"])
    config = base.config
    config.num_labels, config.pad_token_id = 1, PAD
    family = getattr(transformers, spec["model"])
    torch.set_default_dtype(torch.float64)
    with decoders.InDouble():
        model = family(config)
    torch.set_default_dtype(torch.float32)
    model.base_model.load_state_dict(base.base_model.state_dict())
    rng = np.random.default_rng(spec["seed"])
    with torch.no_grad():
        model.score.weight.copy_(torch.from_numpy((rng.standard_normal(model.score.weight.shape) * 0.4).astype(np.float32)))
    model.train()  # dropout is zero in these fixtures
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        written = json.loads((pathlib.Path(folder) / "config.json").read_text())
    del written["transformers_version"]
    return model, written, rng


def compute(name):
    spec = CASES[name]
    tensors, rows = {}, None
    for key, (with_margins, coefficient) in SETTINGS.items():
        model, written, rng = build(spec)
        if rows is None:
            rows = [[[int(t) for t in rng.integers(1, model.config.vocab_size, n)] for n in pair] for pair in LENGTHS]
            for (pair, side), count in PADDED.items():
                rows[pair][side][-count:] = [PAD] * count
        pairs = [{"chosen_ids": chosen, "rejected_ids": rejected} for chosen, rejected in rows]
        if with_margins:
            for pair, margin in zip(pairs, MARGINS):
                pair["margin"] = margin
        batch = DataCollatorForPreference(pad_token_id=PAD)(pairs)
        trainer = OnRows(model, coefficient)

        def loss_of_batch():
            with decoders.InDouble():
                return trainer.compute_loss(model, dict(batch))

        loss = loss_of_batch()
        assert loss.dtype == torch.float64
        for metric in METRICS:
            tensors[f"{key}.{metric}"] = np.array(trainer._metrics["train"][metric][-1])
        loss.backward()
        for tensor, parameter in model.named_parameters():
            tensors[tensor] = parameter.detach().numpy().astype(np.float32)
            if key == "centered":
                tensors[f"grad.{tensor}"] = parameter.grad.numpy().copy()
        with torch.no_grad(), decoders.InDouble():
            tensors["rewards"] = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits[:, 0].numpy().copy()
            # Each alone, without padding: the same.
            for i, row in enumerate([pair[side] for side in range(2) for pair in rows]):
                alone = model(input_ids=torch.tensor([row])).logits[0, 0].item()
                assert abs(alone - tensors["rewards"][i]) < 1e-12, (i, alone, tensors["rewards"][i])
        tensors[f"{key}.loss"] = np.array(loss.item())
        losses, norms = train_adamw(model, loss_of_batch)
        assert losses[0] == loss.item()
        tensors[f"{key}.adamw_losses"], tensors[f"{key}.adamw_grad_norms"] = losses, norms
    flat = [pair[side] for side in range(2) for pair in rows]
    tensors["lengths"] = np.array([len(row) for row in flat], dtype=np.int64)
    tensors["input_ids"] = np.concatenate([np.array(row, dtype=np.int64) for row in flat])
    tensors["margins"] = np.array(MARGINS, dtype=np.float32)
    metadata = {
        "format": "pt",
        "fixture": f"reward_{name}",
        "base": spec["base"],
        "config": json.dumps(written, sort_keys=True),
        "settings": json.dumps({key: {"margins": margins, "center_rewards_coefficient": coefficient or 0.0}
                                for key, (margins, coefficient) in SETTINGS.items()}, sort_keys=True),
        "adamw": json.dumps({**ADAMW, "clip_norm": CLIP_NORM, "steps": STEPS, "decay_min_rank": 2}, sort_keys=True),
        "seed": str(spec["seed"]),
        "versions": json.dumps({**versions(), "trl": trl.__version__}, sort_keys=True),
    }
    return tensors, metadata


def main():
    run_cases(__doc__, CASES, "reward", compute, floor=1e-6)


if __name__ == "__main__":
    main()
