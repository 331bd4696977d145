#!/usr/bin/env python3
"""Writes attention_window.safetensors: attention under the sliding-window masks of transformers, by PyTorch in float64.

    python3 make_attention_golden.py           write the file next to this script
    python3 make_attention_golden.py --check   recompute and compare with the committed file
"""

import argparse
import json
import math
import sys

import torch
from transformers.masking_utils import sliding_window_causal_mask_function

from make_golden import FOLDER, check_fixture, versions, write_fixture

B, T, H, G, D = 1, 70, 4, 2, 6
WINDOWS = [1, 4, 16, 64]


def make():
    generator = torch.Generator().manual_seed(7)
    qkv = torch.randn(B * T, (H + 2 * G) * D, generator=generator)
    dout = torch.randn(B * T, H * D, generator=generator)
    tensors = {"qkv": qkv.numpy(), "dout": dout.numpy()}
    for window in WINDOWS:
        x = qkv.double().requires_grad_()
        q, k, v = x.view(B, T, -1, D).transpose(1, 2).split([H, G, G], dim=1)
        k, v = (y.repeat_interleave(H // G, dim=1) for y in (k, v))
        sees = sliding_window_causal_mask_function(window)
        at = torch.arange(T)
        mask = sees(torch.tensor(0), torch.tensor(0), at[:, None], at[None, :])
        out = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, scale=float(torch.tensor(1 / math.sqrt(D)))
        )
        out = out.transpose(1, 2).reshape(B * T, H * D)
        out.backward(dout.double())
        tensors[f"window_{window}.out"] = out.detach().numpy()
        tensors[f"window_{window}.dqkv"] = x.grad.numpy()
    return tensors


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with the committed file, write nothing")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    path = FOLDER / "attention_window.safetensors"
    sizes = {"B": B, "T": T, "H": H, "G": G, "D": D, "windows": WINDOWS}
    metadata = {"format": "pt", "fixture": path.stem, "sizes": json.dumps(sizes), "versions": json.dumps(versions())}
    tensors = make()
    if arguments.check:
        sys.exit(0 if check_fixture(path, tensors, metadata) else 1)
    write_fixture(path, tensors, metadata)


if __name__ == "__main__":
    main()
