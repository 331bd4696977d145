#!/usr/bin/env python3
"""Writes optim_states.safetensors: optimizers whose states rest in 8 bits (bitsandbytes' CPU path) and in 4 (torchao).

    python3 make_state_golden.py           write the file next to this script
    python3 make_state_golden.py --check   recompute and compare with the committed file

Gradients are no part of it: element i of step s is a hash of both, which the tests have too.

- optim_states: <case> (4,1088) F32: every fourth of 4352 parameters after updates 1, 2, 10 and 500. Gradients:
  noise(step) of the script, uniform, none of every seventh element; p0 is noise(0). Metadata cases: case ->
  optimizer, lr, weight_decay, steps, options.
"""

import argparse
import ctypes
import importlib.metadata
import json
import os
import sys

import numpy as np
import torch

from make_golden import FOLDER, check_fixture, versions, write_fixture


def no_library(path):
    raise OSError(path)  # bitsandbytes then has its operations in PyTorch alone


ctypes.cdll.LoadLibrary = no_library
os.environ["TORCHDYNAMO_DISABLE"] = "1"
import bitsandbytes as bnb  # noqa: E402
import torchao.optim as ao  # noqa: E402

SIZE, STEPS, KEPT = 4352, 500, [1, 2, 10, 500]


def mix64(x):
    x = (x + np.uint64(0x9E3779B97F4A7C15)).astype(np.uint64)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def noise(salt, size):
    """Uniform in size * [-0.5, 0.5) with 24 bits; every seventh element has none."""
    with np.errstate(over="ignore"):
        i = np.arange(SIZE, dtype=np.uint64)
        bits = mix64(i * np.uint64(977) + np.uint64(salt)) & np.uint64(0xFFFFFFFF)
    u = (bits >> np.uint64(8)).astype(np.float32) * np.float32(2.0**-24) - np.float32(0.5)
    u = u * np.float32(size)
    if salt > 0:
        u[::7] = 0
    return u


EIGHT = {
    "adamw": (bnb.optim.AdamW8bit, {"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.1}),
    "lion": (bnb.optim.Lion8bit, {"betas": (0.9, 0.99), "weight_decay": 0.1}),
    "ademamix": (bnb.optim.AdEMAMix8bit, {"weight_decay": 0.1}),
    "sgd": (bnb.optim.SGD8bit, {"momentum": 0.9}),
    "rmsprop": (bnb.optim.RMSprop8bit, {}),
    "adagrad": (bnb.optim.Adagrad8bit, {}),
}
FOUR = {
    "adamw": (ao.AdamW4bit, {"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.1}),
}


def run(kind, options, rate):
    parameter = torch.nn.Parameter(torch.from_numpy(noise(0, 0.35)))
    optimizer = kind([parameter], lr=rate, **options)
    rows = []
    for step in range(1, STEPS + 1):
        parameter.grad = torch.from_numpy(noise(step, 0.035))
        optimizer.step()
        if step in KEPT:
            rows.append(parameter.detach().numpy().copy())
    return np.stack(rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with the committed file, write nothing")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    tensors, cases = {}, {}
    for bits, all_of_them in ((8, EIGHT), (4, FOUR)):
        for name, (kind, options) in all_of_them.items():
            rate = 1e-3
            case = f"{name}_{bits}bit"
            # Every fourth element is kept: blocks and their scales are of all.
            tensors[case] = run(kind, options, rate)[:, ::4].copy()
            cases[case] = {"optimizer": case, "lr": rate, "weight_decay": options.get("weight_decay", 0.0),
                           "steps": KEPT, "options": {k: v for k, v in options.items()}}
    own = {p: importlib.metadata.version(p) for p in ("bitsandbytes", "torchao")}
    metadata = {"format": "pt", "fixture": "optim_states", "cases": json.dumps(cases, sort_keys=True),
                "versions": json.dumps({**versions(), **own}, sort_keys=True)}
    path = FOLDER / "optim_states.safetensors"
    if arguments.check:
        sys.exit(0 if check_fixture(path, tensors, metadata) else 1)
    write_fixture(path, tensors, metadata)


if __name__ == "__main__":
    main()
