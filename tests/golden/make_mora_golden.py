#!/usr/bin/env python3
"""Writes peft_<name>.safetensors of MoRA: what the layer of the authors' fork of PEFT computes, in float64.

    python3 make_mora_golden.py           write every fixture next to this script
    python3 make_mora_golden.py --check   recompute and compare with the committed files (relative 1e-10)

Needs what make_peft_golden.py needs; not part of CI. The fork (kongds/MoRA, peft-mora) is older than today's transformers, so
that its layer is said here again, by columns: Jiang et al., arXiv:2405.12130, and the fork's mora_type 1 and 6.

    name  base       what it is for
    ma    gpt2_a     type 1: transposed layers, all-linear, a side that divides no width
    mb    decoder_a  type 1: Llama, queries, keys and values apart; sides above a width (wrapped once, cut off)
    mc    encoder_b  type 1: BERT, all-linear, the classifier beside it
    md    gpt2_a     type 6: transposed layers, all-linear, from narrow to wide and back
    me    decoder_b  type 6: Llama, tied, patterns of ranks, one group and several
    mf    decoder_a  type 6 over NF4, one layer left out
    mg    encoder_b  type 6: BERT

Tensors and metadata as make_peft_golden.py has them; names and config are the fork's, which saves one matrix as lora_A and
again as lora_B (here in mb and me).
"""

import json
import math

import numpy as np
import peft
import torch
import transformers

import make_peft_golden as of_peft
from make_golden import ADAMW, CLIP_NORM, STEPS, run_cases, train_adamw, versions


def case(seed, base, task, kind, modules, r, ranks={}, layers=None, four_bits=None, both=False):
    return {"seed": seed, "base": base, "task": task, "kind": kind, "modules": modules, "r": r, "ranks": ranks, "layers": layers,
            "four_bits": four_bits, "both": both}


CASES = {
    "ma": case(471, "gpt2_a", "CAUSAL_LM", 1, ["c_attn", "c_proj", "c_fc"], 3),
    "mb": case(472, "decoder_a", "CAUSAL_LM", 1, ["q_proj", "k_proj", "v_proj", "down_proj"], 3, {"q_proj": 20, "k_proj": 14}, both=True),
    "mc": case(473, "encoder_b", "SEQ_CLS", 1, ["query", "key", "value", "dense"], 2),
    "md": case(474, "gpt2_a", "CAUSAL_LM", 6, ["c_attn", "c_proj", "c_fc"], 2),
    "me": case(475, "decoder_b", "CAUSAL_LM", 6, ["q_proj", "v_proj", "o_proj", "up_proj", "down_proj"], 1, {"o_proj": 15, "v_proj": 3},
               both=True),
    "mf": case(476, "decoder_a", "CAUSAL_LM", 6, ["q_proj", "k_proj", "v_proj", "gate_proj"], 2, layers=[1], four_bits="nf4"),
    "mg": case(477, "encoder_b", "SEQ_CLS", 6, ["query", "value", "dense"], 2),
}


class Mora(torch.nn.Module):
    """A linear layer and the square matrix beside it."""

    def __init__(self, base, kind, r):
        super().__init__()
        self.base = base
        self.turned = isinstance(base, transformers.pytorch_utils.Conv1D)
        shape = tuple(base.weight.shape)
        self.out, self.inner = reversed(shape) if self.turned else shape
        self.kind = kind
        side = int(math.sqrt((self.inner + self.out) * r) + 0.5)
        self.side = side // 2 * 2 if kind == 6 else side
        self.lora_A = torch.nn.Linear(self.side, self.side, bias=False)
        torch.nn.init.zeros_(self.lora_A.weight)
        self.groups = -(-self.inner // self.side)
        assert self.groups * self.side <= 2 * self.inner  # the fork's limit
        # As it has them, in float32.
        frequency = 1.0 / (10000 ** (torch.arange(0, self.side, 2).float() / self.side))
        angles = torch.outer(torch.arange(self.groups), frequency)
        self.cos, self.sin = angles.cos().double(), angles.sin().double()

    def beside(self, x):
        columns = torch.arange(self.groups * self.side) % self.inner
        groups = x[..., columns].unflatten(-1, (self.groups, self.side))
        if self.kind == 1:
            made = self.lora_A(groups.sum(dim=-2))
        else:
            first, second = groups.chunk(2, dim=-1)
            turned = torch.cat([first * self.cos - second * self.sin, second * self.cos + first * self.sin], dim=-1)
            made = self.lora_A(turned).flatten(-2)
        return made[..., torch.arange(self.out) % made.shape[-1]]

    def forward(self, x):
        return self.base(x) + self.beside(x)


def put_beside(model, spec):
    """By path, those that are put in the place of the model's modules."""
    placed = {}
    for path, module in list(model.named_modules()):
        last = path.split(".")[-1]
        if last not in spec["modules"] or not isinstance(module, (torch.nn.Linear, transformers.pytorch_utils.Conv1D)):
            continue
        if spec["layers"] and not any(f".{i}." in path for i in spec["layers"]):
            continue
        placed[path] = Mora(module, spec["kind"], spec["ranks"].get(last, spec["r"]))
        parent = model.get_submodule(path.rpartition(".")[0])
        setattr(parent, last, placed[path])
    return placed


def compute(name):
    spec = CASES[name]
    rng = np.random.default_rng(spec["seed"])
    model, run, loss_of, mode, truth, _ = of_peft.base_of(spec["base"])
    if spec["four_bits"]:
        of_peft.rest_in_four_bits(model, spec["four_bits"])
    model.requires_grad_(False)
    placed = put_beside(model, spec)
    trained = {f"base_model.model.{path}.lora_A.weight": layer.lora_A.weight for path, layer in placed.items()}
    if spec["task"] == "SEQ_CLS":
        for key, parameter in model.classifier.named_parameters():
            trained[f"base_model.model.classifier.{key}"] = parameter
    model.double().train()
    with mode():
        fresh = loss_of(run(model)).item()
    assert spec["four_bits"] or abs(fresh - truth) < 1e-12 * truth, (fresh, truth)
    values = {}
    with torch.no_grad():
        for key, parameter in trained.items():
            parameter.requires_grad_(True)
            values[key] = (rng.standard_normal(tuple(parameter.shape)) * (0.2 if "classifier" in key else 0.1)).astype(np.float32)
            parameter.copy_(torch.from_numpy(values[key]))
        for path, layer in placed.items():  # what is beside a layer is a weight
            x = torch.randn(3, layer.inner, dtype=torch.float64)
            weight = layer.beside(torch.eye(layer.inner, dtype=torch.float64))
            assert torch.allclose(x @ weight, layer.beside(x)), path

    def loss_of_batch():
        with mode():
            return loss_of(run(model))

    with mode():
        logits = run(model)
    loss = loss_of(logits)
    assert abs(loss.item() - truth) > 1e-3 * truth
    loss.backward()
    tensors = dict(values)
    if spec["both"]:
        tensors |= {key.replace("lora_A", "lora_B"): value for key, value in values.items() if "lora_A" in key}
    for key, parameter in trained.items():
        tensors["grad." + key] = parameter.grad.numpy().copy()
    tensors["logits"] = logits.detach().numpy().copy()
    tensors["loss"] = np.array(loss.item())
    if spec["four_bits"]:
        tensors["base_loss"] = np.array(fresh)
    losses, norms = train_adamw(of_peft.TrainedAlone(trained), loss_of_batch)
    assert losses[0] == loss.item()
    tensors["adamw_losses"] = losses
    tensors["adamw_grad_norms"] = norms
    config = {"peft_type": "LORA", "use_mora": True, "mora_type": spec["kind"], "task_type": spec["task"], "r": spec["r"],
              "target_modules": sorted(spec["modules"]), "rank_pattern": spec["ranks"], "layers_to_transform": spec["layers"],
              "lora_alpha": 8, "lora_dropout": 0.0, "use_rslora": False, "use_dora": False, "init_lora_weights": True, "bias": "none",
              "fan_in_fan_out": spec["base"].startswith("gpt2"), "inference_mode": True, "alpha_pattern": {}, "loftq_config": {},
              "megatron_config": None, "megatron_core": "megatron.core", "layers_pattern": None}
    if spec["task"] == "SEQ_CLS":
        config["modules_to_save"] = ["classifier"]
    metadata = {
        "format": "pt",
        "fixture": f"peft_{name}",
        "base": spec["base"],
        "adapter_config": json.dumps(config, sort_keys=True),
        "adamw": json.dumps({**ADAMW, "clip_norm": CLIP_NORM, "steps": STEPS, "decay_min_rank": 2}, sort_keys=True),
        "seed": str(spec["seed"]),
        "versions": json.dumps({**versions(), "peft": peft.__version__}, sort_keys=True),
    }
    if spec["four_bits"]:
        metadata["snug_base_form"] = spec["four_bits"]
    return tensors, metadata


def main():
    run_cases(__doc__, CASES, "peft", compute, floor=1e-6)


if __name__ == "__main__":
    main()
