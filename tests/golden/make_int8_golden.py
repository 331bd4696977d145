#!/usr/bin/env python3
"""Writes int8_linear.safetensors: weights in int8 and products of them by bitsandbytes, on the CPU and in float32.

    python3 make_int8_golden.py [--check]

Needs bitsandbytes beside what the other scripts need; not part of CI. Of each case, X:
    X.weight, codes/X.weight, codes/X.weight.absmax   a weight (M,K) F32, its CB as U8 and SCB (Int8Params)
    back/X.weight                                      what these are, by int8_vectorwise_dequant
    X.x, X.bias, X.dy                                  (N,K), (M), (N,M)
    X.y, X.dx                                          MatMul8bitLt
Metadata "cases": name, threshold. Of a, whose matrix has outliers, these are whole columns: of others bitsandbytes
takes more than the outliers of a row out of the codes. Of b one row is 0 and there is no threshold; c is one row.
"""

import argparse
import json
import sys

import bitsandbytes.functional as bnb
import numpy as np
import torch
from bitsandbytes.autograd._functions import MatMul8bitLt, MatmulLtState
from make_golden import FOLDER, check_fixture, versions, write_fixture

CASES = [("a", 5, 37, 70, 6.0), ("b", 4, 64, 9, 0.0), ("c", 1, 129, 65, 6.0)]


def compute():
    rng = np.random.default_rng(601)
    tensors = {}
    for name, n, k, m, threshold in CASES:
        weight = (rng.standard_normal((m, k)) * 0.05).astype(np.float32)
        weight[m // 2] = 0
        weight[1, 2] = 3.5  # beside which the others are nearly nothing
        x = (rng.standard_normal((n, k)) * 1.3).astype(np.float32)
        x = np.clip(x, -4, 4)
        if name == "a":
            x[:, 3], x[:, 36] = 7 + rng.random(n), -20 * (1 + rng.random(n))
        if name == "b":
            x[2], x[0, 5] = 0, 1e4
        if name == "c":
            x[0, [0, 31, 32, 128]] = [6, -6, 5.99, 60000]
        bias = rng.standard_normal(m).astype(np.float32)
        dy = rng.standard_normal((n, m)).astype(np.float32)
        codes, scales, _ = bnb.int8_vectorwise_quant(torch.from_numpy(weight).half())
        state = MatmulLtState()
        state.CB, state.SCB, state.threshold, state.has_fp16_weights = codes, scales, threshold, False
        of_x = torch.from_numpy(x).requires_grad_(True)
        y = MatMul8bitLt.apply(of_x, codes, None, torch.from_numpy(bias), state)
        y.backward(torch.from_numpy(dy))
        if threshold == 0:
            assert (y[2].detach().numpy() == bias).all()
        tensors.update({
            f"{name}.weight": weight, f"codes/{name}.weight": codes.numpy().view(np.uint8).copy(),
            f"codes/{name}.weight.absmax": scales.numpy().copy(),
            f"back/{name}.weight": bnb.int8_vectorwise_dequant(codes, scales).numpy().copy(),
            f"{name}.x": x, f"{name}.bias": bias, f"{name}.dy": dy, f"{name}.y": y.detach().numpy().copy(),
            f"{name}.dx": of_x.grad.numpy().copy()})
    import bitsandbytes

    metadata = {"format": "pt", "fixture": "int8_linear",
                "cases": json.dumps([{"name": name, "threshold": t} for name, _, _, _, t in CASES]),
                "versions": json.dumps({**versions(), "bitsandbytes": bitsandbytes.__version__}, sort_keys=True)}
    return tensors, metadata


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with the committed file, write nothing")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    tensors, metadata = compute()
    path = FOLDER / "int8_linear.safetensors"
    if arguments.check:
        sys.exit(0 if check_fixture(path, tensors, metadata, tolerance=1e-6) else 1)
    write_fixture(path, tensors, metadata)


if __name__ == "__main__":
    main()
