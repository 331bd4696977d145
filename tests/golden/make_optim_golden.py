#!/usr/bin/env python3
"""Writes optim_*.safetensors: optimizer steps and gradient clipping of PyTorch (Lion: of lion-pytorch, AdEMAMix: of
bitsandbytes, Lamb and LARS: of torch-optimizer, the schedule-free ones: of schedulefree, Adam-mini: of adam-mini),
learning-rate schedules of transformers.

    python3 make_optim_golden.py           write the files next to this script
    python3 make_optim_golden.py --check   recompute and compare with the committed files

Everything is computed in float64 from float32-exact inputs.

- optim_steps: p0 (50) and grads (20,50), F32, shared by all cases; <case>.params (20,50) after each step;
  <case>.lr (20), the rate of each step. Element 0 never has a gradient, element 1 starts at zero, element 2 gets
  its first gradient at step 10, element 3 gets none from there on; sizes run from 1e-6 to 10. Metadata cases: JSON,
  case -> optimizer (SGD, Adam, AdamW; Lion of lion-pytorch) and its hyper-parameters as they spell them. PyTorch's
  rules to know: the momentum buffer starts as the first gradient, without dampening; Adam adds weight decay to the
  gradient, AdamW shrinks the parameter.
- optim_long: p0 (60) and grads (100,60); <case>.params (10,60) after every tenth update, and <case>.kept those to
  evaluate, of schedulefree's eval(). kahan.params, kahan.rest and kahan.exact (10,60): plain steps of weights in two
  bf16 numbers, and in float64. Elements 0, 1 and 2 have
  no gradient ever, in the second half, in the first half. Metadata cases: JSON, case -> optimizer and args as Snug
  spells them, weight_decay, momentum, nesterov, dampening, rows (0: a vector), pieces (rows and rows of a head of the
  matrices of it, one behind the other), seconds (numbers of the second state; -1: one an element). Muon's polynomial
  is in float64 as all else, that of muon_bf16 in bf16, as torch has it.
- optim_schedules: one tensor (60) per case, factors of the base rate at steps 0..59 (step 0 is the first update;
  warm-up starts at 0, with wsd_min_lr at the least rate; constant has no warm-up, whatever warmup_steps says).
  Metadata cases: JSON, case -> lr_scheduler_type, warmup_steps 7, total_steps 60, and further arguments as
  transformers spells them.
- optim_clip: <case>.grad.<i> F32, <case>.clipped.<i>, <case>.total_norm [] for i = 0..2, of shapes (3,5),
  (7), (2,3,4). Metadata cases: JSON, case -> max_norm, tensors. just_above is where the 1e-6 of the clip
  factor shows.
- optim_percentile: p0 (60) and grads (130,60), F32, of two parameters, of 40 and 20 elements; <case>.params (13,60)
  after every tenth update, <case>.norms (2,100) F32 the squares of norms that are kept behind the last one. Metadata
  cases: JSON, case -> optimizer as Snug spells it, percentile, weight_decay, momentum. The rule is that of
  percentile_clipping of bitsandbytes up to 0.49, whose sums of squares need CUDA: they are PyTorch's here.
"""

import argparse
import importlib.metadata
import inspect
import json
import sys

import adam_mini
import lion_pytorch
import numpy as np
import schedulefree
import torch
import torch_optimizer
import transformers
from transformers.optimization import get_scheduler

from make_golden import FOLDER, check_fixture, versions, write_fixture

STEPS = 20
SIZE = 50

ADAM = {"lr": 1e-2, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0, "amsgrad": False}
LION = {"lr": 1e-2, "betas": [0.9, 0.99], "weight_decay": 0.0}
SGD = {"lr": 1e-2, "momentum": 0.0, "dampening": 0.0, "weight_decay": 0.0, "nesterov": False}

# name: (class, hyper-parameters); "varying" multiplies the learning rate of step s by (s + 1) / STEPS
STEP_CASES = {
    "sgd": ("SGD", SGD),
    "sgd_momentum": ("SGD", {**SGD, "momentum": 0.9}),
    "sgd_nesterov": ("SGD", {**SGD, "momentum": 0.9, "nesterov": True}),
    "sgd_dampening": ("SGD", {**SGD, "momentum": 0.9, "dampening": 0.1}),
    "sgd_weight_decay": ("SGD", {**SGD, "weight_decay": 0.1}),
    "sgd_momentum_weight_decay": ("SGD", {**SGD, "momentum": 0.9, "weight_decay": 0.1}),
    "adam": ("Adam", ADAM),
    "adam_weight_decay": ("Adam", {**ADAM, "weight_decay": 0.1}),
    "adamw": ("AdamW", {**ADAM, "weight_decay": 0.1}),
    "adamw_betas": ("AdamW", {**ADAM, "betas": [0.8, 0.95], "weight_decay": 0.1}),
    "adamw_no_decay": ("AdamW", ADAM),
    "adamw_varying_lr": ("AdamW", {**ADAM, "weight_decay": 0.1, "varying": True}),
    "lion": ("Lion", LION),
    "lion_betas": ("Lion", {**LION, "betas": [0.95, 0.98], "weight_decay": 0.1}),
    "lion_varying_lr": ("Lion", {**LION, "weight_decay": 0.1, "varying": True}),
}

WARMUP, TOTAL = 7, 60
WSD = {"num_stable_steps": 33, "num_decay_steps": 20}
SCHEDULE_CASES = {
    "constant": ("constant", {}),
    "constant_with_warmup": ("constant_with_warmup", {}),
    "linear": ("linear", {}),
    "cosine": ("cosine", {}),
    "cosine_with_restarts": ("cosine_with_restarts", {"num_cycles": 3}),
    "cosine_with_min_lr": ("cosine_with_min_lr", {"min_lr_rate": 0.1}),
    "polynomial": ("polynomial", {}),
    "polynomial_power2": ("polynomial", {"power": 2.0, "lr_end": 0.05}),
    "inverse_sqrt": ("inverse_sqrt", {}),
    "wsd_cosine": ("warmup_stable_decay", {**WSD, "decay_type": "cosine"}),
    "wsd_linear": ("warmup_stable_decay", {**WSD, "decay_type": "linear"}),
    "wsd_1_sqrt": ("warmup_stable_decay", {**WSD, "decay_type": "1-sqrt"}),
    "wsd_min_lr": ("warmup_stable_decay", {**WSD, "decay_type": "cosine", "min_lr_ratio": 0.1}),
}


def common_metadata(fixture, cases, **packages):
    return {
        "format": "pt",
        "fixture": fixture,
        "cases": json.dumps(cases, sort_keys=True),
        "versions": json.dumps({**versions(), **packages}, sort_keys=True),
    }


def optimizer_steps():
    rng = np.random.default_rng(201)
    start = rng.standard_normal(SIZE).astype(np.float32)
    # Sizes from 1e-6 to 10 between elements, so that eps and the first steps of the moments show.
    size = np.logspace(-6, 1, SIZE)
    grads = (rng.standard_normal((STEPS, SIZE)) * size).astype(np.float32)
    grads[:, 0] = 0.0  # never a gradient: only decay may move it
    start[1] = 0.0  # a parameter that starts at zero
    grads[: STEPS // 2, 2] = 0.0  # the first gradient comes late
    grads[STEPS // 2 :, 3] = 0.0  # ... or stops, and momentum goes on

    tensors = {"p0": start, "grads": grads}
    described = {}
    for name, (kind, hyper) in STEP_CASES.items():
        varying = hyper.get("varying", False)
        options = {key: value for key, value in hyper.items() if key != "varying"}
        rates = [options["lr"] * ((step + 1) / STEPS if varying else 1.0) for step in range(STEPS)]
        if "betas" in options:
            options["betas"] = tuple(options["betas"])
        parameter = torch.nn.Parameter(torch.from_numpy(start.astype(np.float64)))
        if kind == "Lion":
            optimizer = lion_pytorch.Lion([parameter], **options)
        else:
            optimizer = getattr(torch.optim, kind)([parameter], foreach=False, **options)
        rows = []
        for step in range(STEPS):
            optimizer.param_groups[0]["lr"] = rates[step]
            parameter.grad = torch.from_numpy(grads[step].astype(np.float64))
            optimizer.step()
            rows.append(parameter.detach().numpy().copy())
        tensors[f"{name}.params"] = np.stack(rows)
        tensors[f"{name}.lr"] = np.array(rates)
        described[name] = {"optimizer": kind, **{k: v for k, v in hyper.items() if k != "varying"}}
    return tensors, common_metadata("optim_steps", described, lion_pytorch=importlib.metadata.version("lion-pytorch"))


LONG_STEPS, LONG_SIZE, LONG_EVERY = 100, 60, 10

# Settings of every optimizer over LONG_STEPS updates. name: (optimizer of Snug, its optim_args, reference, its options)
LONG_CASES = {
    "rmsprop": ("rmsprop", {}, "RMSprop", {}),
    "rmsprop_momentum": ("rmsprop", {"alpha": 0.9, "momentum": 0.9}, "RMSprop", {"alpha": 0.9, "momentum": 0.9}),
    "rmsprop_centered": ("rmsprop", {"centered": 1, "eps": 1e-4}, "RMSprop", {"centered": True, "eps": 1e-4}),
    "rmsprop_both_decay": ("rmsprop", {"centered": 1, "momentum": 0.5}, "RMSprop",
                           {"centered": True, "momentum": 0.5, "weight_decay": 0.1}),
    "adagrad": ("adagrad", {}, "Adagrad", {}),
    "adagrad_settings_decay": ("adagrad", {"lr_decay": 0.01, "initial_accumulator_value": 0.1, "eps": 1e-6}, "Adagrad",
                               {"lr_decay": 0.01, "initial_accumulator_value": 0.1, "eps": 1e-6, "weight_decay": 0.1}),
    "ademamix": ("ademamix", {}, "AdEMAMix", {"weight_decay": 0.0}),
    "ademamix_decay": ("ademamix", {"beta3": 0.999, "alpha": 8}, "AdEMAMix",
                       {"betas": (0.9, 0.999, 0.999), "alpha": 8.0, "weight_decay": 0.1}),
    "ademamix_warm": ("ademamix", {"t_alpha": 60, "t_beta3": 80}, "AdEMAMix",
                      {"t_alpha": 60, "t_beta3": 80, "weight_decay": 0.1}),
    "adamw": ("adamw", {}, "AdamW", {"weight_decay": 0.1}),
    "adam": ("adam", {}, "Adam", {"weight_decay": 0.1}),
    "sgd": ("sgd", {}, "SGD", {"weight_decay": 0.1}),
    "lion": ("lion", {}, "Lion", {"betas": (0.9, 0.999), "weight_decay": 0.1}),
    "lamb": ("lamb", {}, "Lamb", {}),
    "lamb_decay": ("lamb", {"clamp_value": 3, "eps": 1e-4}, "Lamb", {"clamp_value": 3.0, "eps": 1e-4, "weight_decay": 0.1}),
    "lamb_debias": ("lamb", {"debias": 1}, "Lamb", {"debias": True, "weight_decay": 0.1}),
    "lars": ("lars", {}, "LARS", {"weight_decay": 0.1}),
    "lars_no_decay": ("lars", {}, "LARS", {}),
    "lars_momentum": ("lars", {"trust_coefficient": 0.05, "eps": 0.1}, "LARS",
                      {"momentum": 0.9, "nesterov": True, "trust_coefficient": 0.05, "eps": 0.1, "weight_decay": 0.1}),
    "lars_dampening": ("lars", {}, "LARS", {"momentum": 0.9, "dampening": 0.1, "weight_decay": 0.1}),
    "adafactor": ("adafactor", {}, "Adafactor", {}),
    "adafactor_matrix": ("adafactor", {}, "Adafactor", {"weight_decay": 0.1}),
    "adafactor_scaled": ("adafactor", {"scale_parameter": 1, "clip_threshold": 0.5, "decay_rate": -0.6, "eps1": 1e-8},
                         "Adafactor", {"scale_parameter": True, "clip_threshold": 0.5, "decay_rate": -0.6,
                                       "eps": (1e-8, 1e-3), "weight_decay": 0.1}),
    "schedule_free_adamw": ("schedule_free_adamw", {}, "AdamWScheduleFree", {}),
    "schedule_free_adamw_warm": ("schedule_free_adamw", {"warmup_steps": 40, "r": 0.5, "weight_lr_power": 1.5},
                                 "AdamWScheduleFree",
                                 {"warmup_steps": 40, "r": 0.5, "weight_lr_power": 1.5, "weight_decay": 0.1}),
    "schedule_free_sgd": ("schedule_free_sgd", {}, "SGDScheduleFree", {}),
    "schedule_free_sgd_warm": ("schedule_free_sgd", {"warmup_steps": 7, "momentum": 0.6}, "SGDScheduleFree",
                               {"warmup_steps": 7, "momentum": 0.6, "weight_decay": 0.1}),
}
for name, args, options in [
    ("muon", {}, {}),
    ("muon_tall", {"momentum": 0.8, "nesterov": 0, "ns_steps": 3}, {"momentum": 0.8, "nesterov": False, "ns_steps": 3}),
    ("muon_rms", {"match_rms_adamw": 1, "ns_a": 3.0, "ns_b": -3.2, "ns_c": 1.2, "eps": 1e-3},
     {"adjust_lr_fn": "match_rms_adamw", "ns_coefficients": (3.0, -3.2, 1.2), "eps": 1e-3}),
    ("muon_bf16", {"ns_bf16": 1}, {}),
]:
    LONG_CASES[name] = ("muon", args, "Muon", {"weight_decay": 0.1, **options})
LONG_CASES["muon_rest"] = ("muon", {"aux_lr": 3e-3}, "AdamW", {"lr": 3e-3, "weight_decay": 0.1})
LONG_CASES["muon_rest_usual"] = ("muon", {}, "AdamW", {"lr": 1e-2 * 0.015, "weight_decay": 0.0})
for name in ["rows", "heads", "norm", "bias"]:
    LONG_CASES[f"adam_mini_{name}"] = ("adam_mini", {}, "Adam_mini",
                                       {"weight_decay": 0.1 if name in ("rows", "heads") else 0.0})
# Those that are no vectors.
LONG_SHAPES = {"adafactor_matrix": (5, 12), "adafactor_scaled": (15, 4), "muon": (5, 12), "muon_tall": (15, 4),
               "muon_rms": (5, 12), "muon_bf16": (5, 12), "adam_mini_rows": (5, 12), "adam_mini_heads": (6, 10)}
LONG_PIECES = {"muon": [[5, 0]], "muon_tall": [[15, 0]], "muon_rms": [[5, 0]], "muon_bf16": [[5, 0]],
               "adam_mini_heads": [[6, 2]]}
LONG_SECONDS = {"muon": 0, "muon_tall": 0, "muon_rms": 0, "muon_bf16": 0, "adam_mini_rows": 5, "adam_mini_heads": 3,
                "adam_mini_norm": 1}
# By these the package finds what a parameter is; a head of queries is dim^2 / n_heads elements.
MINI_NAMES = {"rows": "mlp.weight", "heads": "q_proj.weight", "norm": "norm.weight", "bias": "bias"}
MINI = {"dim": 10, "n_heads": 5, "verbose": False}


def exact_muon():
    """torch.optim.Muon's polynomial in float64."""
    from torch.optim import _muon

    source = inspect.getsource(_muon._zeropower_via_newtonschulz)
    assert source.count("torch.bfloat16") == 1
    scope = dict(vars(_muon))
    exec(source.replace("torch.bfloat16", "torch.float64"), scope)
    return scope["_zeropower_via_newtonschulz"]


def long_runs():
    """Parameters after every tenth update. The references: torch.optim, bitsandbytes' AdEMAMix in PyTorch, lion-pytorch, torch-optimizer's
    Lamb and LARS, transformers' Adafactor."""
    from bitsandbytes.optim.ademamix import _ReferenceAdEMAMix

    from torch.optim import _muon

    polynomials = {True: exact_muon(), False: _muon._zeropower_via_newtonschulz}
    classes = {"Muon": torch.optim.Muon, "AdEMAMix": _ReferenceAdEMAMix, "Lion": lion_pytorch.Lion, "Lamb": torch_optimizer.Lamb,
               "LARS": torch_optimizer.LARS, "Adafactor": transformers.Adafactor,
               "AdamWScheduleFree": schedulefree.AdamWScheduleFree, "SGDScheduleFree": schedulefree.SGDScheduleFree}
    rng = np.random.default_rng(203)
    start = rng.standard_normal(LONG_SIZE).astype(np.float32)
    grads = (rng.standard_normal((LONG_STEPS, LONG_SIZE)) * np.logspace(-4, 1, LONG_SIZE)).astype(np.float32)
    grads[:, 0] = 0.0  # never a gradient
    grads[LONG_STEPS // 2 :, 1] = 0.0  # none any more
    grads[: LONG_STEPS // 2, 2] = 0.0  # none at first
    tensors, described = {"p0": start, "grads": grads}, {}
    for name, (optimizer, args, reference, options) in LONG_CASES.items():
        shape = LONG_SHAPES.get(name, (LONG_SIZE,))
        parameter = torch.nn.Parameter(torch.from_numpy(start.astype(np.float64)).reshape(shape))
        options = {"lr": 1e-2, **options}
        if reference == "Adafactor":  # as transformers' Trainer makes it
            options = {"scale_parameter": False, "relative_step": False, **options}
        _muon._zeropower_via_newtonschulz = polynomials[name != "muon_bf16"]
        if reference == "Adam_mini":
            made = adam_mini.Adam_mini([(MINI_NAMES[name.removeprefix("adam_mini_")], parameter)], **MINI, **options)
        elif reference in ("RMSprop", "Adagrad", "AdamW", "Adam", "SGD"):
            made = getattr(torch.optim, reference)([parameter], foreach=False, **options)
        else:
            made = classes[reference]([parameter], **options)
        rows, kept = [], []
        averages = "ScheduleFree" in reference
        if averages:
            made.train()
        for step in range(LONG_STEPS):
            parameter.grad = torch.from_numpy(grads[step].astype(np.float64)).reshape(shape)
            made.step()
            if (step + 1) % LONG_EVERY == 0:
                rows.append(parameter.detach().numpy().ravel().copy())
                if averages:
                    made.eval()
                    kept.append(parameter.detach().numpy().ravel().copy())
                    made.train()
        tensors[f"{name}.params"] = np.stack(rows)
        if averages:
            tensors[f"{name}.kept"] = np.stack(kept)
        described[name] = {"optimizer": optimizer, "args": args, "weight_decay": options.get("weight_decay", 0.0),
                           "momentum": options.get("momentum", 0.0), "nesterov": options.get("nesterov", False),
                           "dampening": options.get("dampening", 0.0), "rows": shape[0] if optimizer == "adafactor" and len(shape) == 2 else 0,
                           "pieces": LONG_PIECES.get(name, []), "seconds": LONG_SECONDS.get(name, -1)}
    tensors |= kahan(start, grads)
    packages = {p: importlib.metadata.version(p) for p in ("adam-mini", "bitsandbytes", "lion-pytorch", "schedulefree", "torch-optimizer")}
    return tensors, common_metadata("optim_long", described, **packages)


def kahan(start, grads):
    """Plain steps with decay of a weight in two bf16 numbers, as torch rounds them, and in float64."""
    rate, decay = np.float32(1e-2), np.float32(0.1)
    weight = torch.from_numpy(start).bfloat16()
    rest = torch.zeros_like(weight)
    exact = weight.double()
    out = {"kahan.params": [], "kahan.rest": [], "kahan.exact": []}
    for step in range(LONG_STEPS):
        grad = torch.from_numpy(grads[step])
        x = weight.float() + rest.float()
        x = x - torch.tensor(rate) * (grad + torch.tensor(decay) * x)
        exact = exact - float(rate) * (grad.double() + float(decay) * exact)
        weight = x.bfloat16()
        rest = (x - weight.float()).bfloat16()
        if (step + 1) % LONG_EVERY == 0:
            out["kahan.params"].append(weight.float().numpy())
            out["kahan.rest"].append(rest.float().numpy())
            out["kahan.exact"].append(exact.numpy().copy())
    return {name: np.stack(rows) for name, rows in out.items()}


def schedules():
    tensors, described = {}, {}
    for name, (kind, extra) in SCHEDULE_CASES.items():
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
        scheduler = get_scheduler(
            kind,
            optimizer,
            num_warmup_steps=WARMUP,
            num_training_steps=None if kind == "warmup_stable_decay" else TOTAL,
            scheduler_specific_kwargs=dict(extra),
        )
        factors = []
        for _ in range(TOTAL + 1):  # the step behind the last one too: the end of what falls
            factors.append(float(optimizer.param_groups[0]["lr"]))
            optimizer.step()
            scheduler.step()
        tensors[name] = np.array(factors)
        described[name] = {"lr_scheduler_type": kind, "warmup_steps": WARMUP, "total_steps": TOTAL, **extra}
    return tensors, common_metadata("optim_schedules", described)


def clipping():
    rng = np.random.default_rng(202)
    shapes = [(3, 5), (7,), (2, 3, 4)]
    tensors, described = {}, {}
    for name, scale, max_norm in [
        ("large", 3.0, 1.0),  # clipped
        ("small", 1e-3, 1.0),  # untouched
        ("just_above", None, 1.0),  # norm 1 + 2e-7: the 1e-6 in the denominator decides
        ("tiny_limit", 1.0, 1e-4),
        ("zero", 0.0, 1.0),
    ]:
        grads = [rng.standard_normal(shape) for shape in shapes]
        if scale is None:
            scale = (1.0 + 2e-7) / np.sqrt(sum((g**2).sum() for g in grads))
        grads = [(g * scale).astype(np.float32) for g in grads]
        parameters = [torch.nn.Parameter(torch.zeros(shape, dtype=torch.float64)) for shape in shapes]
        for parameter, grad in zip(parameters, grads):
            parameter.grad = torch.from_numpy(grad.astype(np.float64))
        norm = torch.nn.utils.clip_grad_norm_(parameters, max_norm, foreach=False)
        for i, (parameter, grad) in enumerate(zip(parameters, grads)):
            tensors[f"{name}.grad.{i}"] = grad
            tensors[f"{name}.clipped.{i}"] = parameter.grad.numpy().copy()
        tensors[f"{name}.total_norm"] = np.array(norm.item())
        described[name] = {"max_norm": max_norm, "tensors": len(shapes)}
    return tensors, common_metadata("optim_clip", described)


PERCENTILE_SIZES, PERCENTILE_STEPS = (40, 20), 130
PERCENTILE_CASES = {  # optimizer, percentile, options of the class of torch.optim
    "adamw": ("AdamW", 5, {"weight_decay": 0.1}),
    "median": ("SGD", 50, {"momentum": 0.9}),
    "least": ("SGD", 0, {"weight_decay": 0.1}),
    "largest": ("AdamW", 99, {}),
}


def percentile():
    """Steps of torch.optim on gradients that are scaled parameter by parameter. The norms are kept in float32, as they are there."""
    rng = np.random.default_rng(204)
    size = sum(PERCENTILE_SIZES)
    start = rng.standard_normal(size).astype(np.float32)
    # Norms that wander, with outliers.
    scales = np.exp(rng.standard_normal((PERCENTILE_STEPS, 2)) * np.where(rng.random((PERCENTILE_STEPS, 2)) < 0.1, 3, 0.5))
    grads = rng.standard_normal((PERCENTILE_STEPS, size)) * np.repeat(scales, PERCENTILE_SIZES, axis=1)
    grads = grads.astype(np.float32)
    tensors, described = {"p0": start, "grads": grads}, {}
    for name, (optimizer, percent, options) in PERCENTILE_CASES.items():
        pieces = torch.split(torch.from_numpy(start.astype(np.float64)), PERCENTILE_SIZES)
        parameters = [torch.nn.Parameter(p.clone()) for p in pieces]
        made = getattr(torch.optim, optimizer)(parameters, foreach=False, lr=1e-2, **({"weight_decay": 0.0} | options))
        kept = [torch.zeros(100) for _ in parameters]
        rows = []
        for step in range(1, PERCENTILE_STEPS + 1):
            pieces = torch.split(torch.from_numpy(grads[step - 1].astype(np.float64)), PERCENTILE_SIZES)
            for parameter, norms, grad in zip(parameters, kept, pieces):
                square = (grad * grad).sum().float()
                if step == 1:
                    norms[:] = square
                norms[step % 100] = square
                limit, norm = torch.sort(norms).values[percent].sqrt(), square.sqrt()
                parameter.grad = grad * (limit / norm).double() if norm > limit else grad
            made.step()
            if step % LONG_EVERY == 0:
                rows.append(torch.cat([p.detach() for p in parameters]).numpy().copy())
        tensors[f"{name}.params"] = np.stack(rows)
        tensors[f"{name}.norms"] = torch.stack(kept).numpy()
        described[name] = {"optimizer": optimizer.lower(), "percentile": percent, "weight_decay": options.get("weight_decay", 0.0),
                           "momentum": options.get("momentum", 0.0)}
    return tensors, common_metadata("optim_percentile", described)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with the committed files, write nothing")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    good = True
    for name, make in {"optim_steps": optimizer_steps, "optim_long": long_runs, "optim_schedules": schedules,
                       "optim_clip": clipping, "optim_percentile": percentile}.items():
        path = FOLDER / f"{name}.safetensors"
        tensors, metadata = make()
        if arguments.check:
            good &= check_fixture(path, tensors, metadata)
        else:
            write_fixture(path, tensors, metadata)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
