#!/usr/bin/env python3
"""Writes quant_*.safetensors: codes, scales and decoded values of bitsandbytes, PyTorch and NumPy.

    python3 make_quant_golden.py           write the files next to this script
    python3 make_quant_golden.py --check   recompute and compare with the committed files

bitsandbytes runs its reference functions (the `default` backend): nearest code, a value in the middle takes the lower
one. Its native loop for the CPU looks 8-bit codes up in a table instead and misses the nearest one for 160 of 102,400
normal numbers (0 becomes 2.1e-5 of the block), so its library is not loaded. Inputs are padded with zeros to whole
blocks, where the reference multiplies by 1/absmax as the CUDA kernels do in every block. The mean of the scales, a
float sum in PyTorch whose order is the processor's, is taken in double.

- quant_dynamic, quant_four_bits, quant_integers, quant_fp8: inputs x or plain (4099) F32; a case is
  <codec>.<block>.<dtype>.<n>: the first n inputs rounded to the dtype (magnitudes alone for dynamic8_unsigned),
  .codes U8, .scales F32 (blocks; of min_max8 (blocks,2): s, z), .values in the dtype (16-bit ones as I16) for
  n <= 65 and one block for 4099. <codec>.book: the values by code, 0 where a code has none. Blocks of zeros, of one
  value, of subnormals, -0 and one huge value are in the inputs; plain has no subnormals of f32.
- quant_states: as quant_dynamic, of torchao's 4-bit maps (dynamic4, linear4_unsigned).
- quant_double: x (33001) bf16 as I16; <codec>.<block> with .codes, .scale_codes U8, .scales, .offset
  F32, .values.
- quant_file: <name> F32 or F16, codes/<name> and its parts as bitsandbytes puts them in a file, back/<name>
  as it reads them.
- quant_quantile: plain; quantile8.<block>.<dtype> with .book (256) F32 and as above.
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
    raise OSError(f"{path}: the reference functions are wanted")


ctypes.cdll.LoadLibrary = no_library
os.environ["TORCHDYNAMO_DISABLE"] = "1"  # eagerly, product by product
import bitsandbytes.functional as bnb  # noqa: E402

OPS = torch.ops.bitsandbytes
SIZES = [1, 63, 64, 65, 255, 256, 257, 4099]
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
FP8 = {"fp8_e4m3": (torch.float8_e4m3fn, 448.0), "fp8_e5m2": (torch.float8_e5m2, 57344.0)}
BOOKS = {"dynamic8": bnb.create_dynamic_map(signed=True), "dynamic8_unsigned": bnb.create_dynamic_map(signed=False)}


def inputs():
    """x: magnitudes over many decades with blocks of zeros, of one value, of subnormals, and one huge value."""
    rng = np.random.default_rng(301)
    x = (rng.standard_normal(4099) * np.exp(1.5 * rng.standard_normal(4099))).astype(np.float32)
    x[::97] = -0.0
    x[5::101] = 0.0
    x[512:768] = 0.0
    x[768:1024] = -0.37
    x[1024:1280] *= np.float32(3e-42)
    x[1500] = 60000.0
    x[2000:2100] *= np.float32(1e-7)
    plain = x.copy()  # without the subnormals of f32, for rules that have no answer for them
    plain[1024:1280] *= np.float32(1e38)
    return {"x": x, "plain": plain}


def padded(x, block):
    rest = -x.numel() % block
    return torch.cat([x, torch.zeros(rest, dtype=x.dtype)]) if rest else x


def with_book(codec, x, block):
    q, absmax = OPS.quantize_blockwise.default(padded(x, block), BOOKS[codec], block)
    y = OPS.dequantize_blockwise.default(q, absmax, BOOKS[codec], block, x.dtype)
    return q[: x.numel()], absmax, y[: x.numel()]


def four_bits(codec, x, block):
    whole = padded(x, block)
    q, absmax = OPS.quantize_4bit.default(whole, block, codec, torch.uint8)
    y = OPS.dequantize_4bit.default(q, absmax, block, codec, whole.shape, x.dtype)
    return q.flatten()[: (x.numel() + 1) // 2], absmax, y.flatten()[: x.numel()]


def rows_of_int8(codec, x, block):
    q, absmax, _ = OPS.int8_vectorwise_quant.default(padded(x, block).view(-1, block), 0.0)
    y = OPS.int8_vectorwise_dequant.default(q, absmax).to(x.dtype)
    return q.flatten()[: x.numel()].view(torch.uint8), absmax, y.flatten()[: x.numel()]


def float8(codec, x, block):
    kind, peak = FP8[codec]
    rows = padded(x, block).float().view(-1, block)
    scale = rows.abs().amax(-1).clip(1e-12) / peak
    q = (rows / scale.view(-1, 1)).to(kind)
    y = (q.float() * scale.view(-1, 1)).to(x.dtype)
    return q.view(torch.uint8).flatten()[: x.numel()], scale, y.flatten()[: x.numel()]


def min_max(codec, x, block):
    codes, scales, values = [], [], []
    for row in x.float().split(block):
        low, high = row.min(), row.max()
        if low == high:
            s, z, q = high, torch.tensor(0.0), torch.ones_like(row)
        else:
            s = (high - low) / 255
            z = torch.round(-low / s)
            q = torch.clamp(torch.round(row * (1 / s)) + z, 0, 255)
            if 0 <= z <= 255:  # where PyTorch has such tensors
                theirs = torch.quantize_per_tensor(row, float(s), int(z), torch.quint8)
                assert torch.equal(theirs.int_repr(), q.to(torch.uint8))
                assert torch.equal(theirs.dequantize(), (q - z) * s)
        codes.append(q.to(torch.uint8))
        scales.append(torch.stack([s, z]))
        values.append((q - z) * s)
    return torch.cat(codes), torch.stack(scales), torch.cat(values).to(x.dtype)


def of_states(codec, x, block):
    """torchao's, which scales in the input's own type: ours are scaled in f32, so f32 alone."""
    from torchao.optim import quant_utils, subclass_4bit as ao

    qmap = torch.tensor(ao.get_qmap_signed() if codec == "dynamic4" else ao.get_qmap_unsigned())
    whole, scale = quant_utils.scale_tensor(padded(x.float(), block), block)
    codes = quant_utils.quantize_4bit_with_qmap(whole, qmap)
    y = quant_utils.dequant_with_qmap(codes, qmap, scale)[: x.numel()].to(x.dtype)
    zero = quant_utils.quantize_4bit_with_qmap(torch.zeros(1), qmap)
    codes = torch.cat([codes[: x.numel()], zero]) if x.numel() % 2 else codes[: x.numel()]
    return codes[0::2] << 4 | codes[1::2], scale, y


# codec: (how, blocks, input)
CODECS = {
    "dynamic8": (with_book, [256, 2048], "x"),
    "dynamic8_unsigned": (with_book, [256, 4096], "x"),
    "dynamic4": (of_states, [128], "x"),
    "linear4_unsigned": (of_states, [128], "x"),
    "nf4": (four_bits, [64, 128, 4096], "x"),
    "fp4": (four_bits, [64, 128], "x"),
    "int8": (rows_of_int8, [256, 48, 1000], "plain"),
    "min_max8": (min_max, [256, 100], "plain"),
    "fp8_e4m3": (float8, [256], "x"),
    "fp8_e5m2": (float8, [256], "x"),
}
FILES = {
    "quant_dynamic": ["dynamic8", "dynamic8_unsigned"],
    "quant_four_bits": ["nf4", "fp4"],
    "quant_states": ["dynamic4", "linear4_unsigned"],
    "quant_integers": ["int8", "min_max8"],
    "quant_fp8": ["fp8_e4m3", "fp8_e5m2"],
}


def as_stored(y):
    return (y if y.dtype == torch.float32 else y.view(torch.int16)).numpy().copy()


def metadata(fixture, cases):
    own = {"bitsandbytes": importlib.metadata.version("bitsandbytes")}
    return {"format": "pt", "fixture": fixture, "cases": json.dumps(cases),
            "versions": json.dumps({**versions(), **own}, sort_keys=True)}


def blocks_of(fixture):
    tensors, cases = {}, []
    data = inputs()
    for codec in FILES[fixture]:
        how, blocks, which = CODECS[codec]
        tensors[which] = data[which]
        for block in blocks:
            for dtype, kind in DTYPES.items():
                for n in SIZES:
                    x = torch.from_numpy(data[which][:n].copy()).to(kind)
                    if codec.endswith("_unsigned"):
                        x = x.abs()
                    q, scales, y = how(codec, x, block)
                    name = f"{codec}.{block}.{dtype}.{n}"
                    tensors[f"{name}.codes"], tensors[f"{name}.scales"] = q.numpy().copy(), scales.numpy().copy()
                    if n <= 65 or (n == SIZES[-1] and block == blocks[0]):
                        tensors[f"{name}.values"] = as_stored(y)
                    cases.append({"name": name, "codec": codec, "block": block, "dtype": dtype, "n": n, "input": which})
    for codec in FILES[fixture]:
        if codec in BOOKS:
            tensors[f"{codec}.book"] = BOOKS[codec].numpy()
        elif codec in ("dynamic4", "linear4_unsigned"):
            from torchao.optim import subclass_4bit as ao

            tensors[f"{codec}.book"] = np.array(
                ao.get_qmap_signed() if codec == "dynamic4" else ao.get_qmap_unsigned(), dtype=np.float32)
        elif codec in ("nf4", "fp4"):
            tensors[f"{codec}.book"] = bnb.get_4bit_type(codec, device="cpu").numpy()
        elif codec in FP8:
            book = torch.arange(256).to(torch.uint8).view(FP8[codec][0]).float()
            tensors[f"{codec}.book"] = torch.nan_to_num(book, 0, 0, 0).numpy()
    return tensors, metadata(fixture, cases)


def doubled():
    """Scales of 4-bit blocks in 8 bits. bitsandbytes takes the mean by PyTorch's float sum, whose order is its
    processor's; here it is the mean in double, rounded once, and the steps after it are those of bitsandbytes."""
    rng = np.random.default_rng(302)
    n = 33001
    x = torch.from_numpy(rng.standard_normal(n) * np.exp(0.3 * rng.standard_normal(n))).to(torch.bfloat16)
    tensors, cases = {"x": as_stored(x)}, []
    for codec, block in [("nf4", 64), ("fp4", 128)]:
        q, absmax, _ = four_bits(codec, x, block)
        offset = absmax.double().mean().float()
        assert abs(float(absmax.mean() - offset)) <= 2 * float(np.spacing(offset.numpy()))
        less = padded(absmax - offset, 256)
        codes, scales = OPS.quantize_blockwise.default(less, BOOKS["dynamic8"], 256)
        if absmax.numel() % 256:  # the zeros of the padding are not less the offset
            scales[-1] = (absmax - offset)[absmax.numel() // 256 * 256 :].abs().max()
        back = OPS.dequantize_blockwise.default(codes, scales, BOOKS["dynamic8"], 256, torch.float32) + offset
        back = back[: absmax.numel()]
        whole = padded(x, block)
        y = OPS.dequantize_4bit.default(four_bits(codec, whole, block)[0], back, block, codec, whole.shape, x.dtype)
        name = f"{codec}.{block}"
        tensors.update({f"{name}.codes": q.numpy().copy(), f"{name}.scale_codes": codes[: absmax.numel()].numpy().copy(),
                        f"{name}.scales": scales.numpy().copy(), f"{name}.offset": offset.view(1).numpy().copy(),
                        f"{name}.values": as_stored(y.flatten()[:n])})
        cases.append({"name": name, "codec": codec, "block": block, "n": n})
    return tensors, metadata("quant_double", cases)


def quantiles():
    """Books of the data: numpy's quantiles of x * (1/absmax) in float64; the nearest entry, the lower one of two."""
    x32 = inputs()["plain"]
    tensors, cases = {"plain": x32}, []
    for block in (x32.size, 256):
        for dtype, kind in DTYPES.items():
            x = torch.from_numpy(x32.copy()).to(kind)
            rows = padded(x, block).float().view(-1, block)
            absmax = rows.abs().amax(-1)
            scaled = (rows * (1 / absmax.clamp(min=1e-38)).view(-1, 1)).flatten()[: x.numel()]
            book = np.quantile(scaled.double().numpy(), (np.arange(256) + 0.5) / 256).astype(np.float32) + np.float32(0)
            entries = torch.from_numpy(book.copy())
            q = torch.bucketize(scaled, (entries[:-1] + entries[1:]) / 2)
            y = (entries[q] * absmax.repeat_interleave(block)[: x.numel()]).to(kind)
            name = f"quantile8.{block}.{dtype}"
            tensors.update({f"{name}.book": book, f"{name}.codes": q.to(torch.uint8).numpy(),
                            f"{name}.scales": absmax.numpy().copy(), f"{name}.values": as_stored(y)})
            cases.append({"name": name, "block": block, "dtype": dtype})
    return tensors, metadata("quant_quantile", cases)


def files():
    """What bitsandbytes puts in a file for a weight: nf4 with doubled scales and fp4 without, and what it reads back.
    The seed is one where its float mean of the scales is the mean in double, rounded once."""
    rng = np.random.default_rng(304)
    tensors, cases = {}, []
    for name, codec, block, kind, shape, double in [("a.weight", "nf4", 64, torch.float32, (48, 64), True),
                                                    ("b.weight", "fp4", 128, torch.float16, (34, 64), False)]:
        x = torch.from_numpy(rng.standard_normal(shape) * 0.02).to(kind)
        q, state = bnb.quantize_4bit(x, blocksize=block, compress_statistics=double, quant_type=codec)
        tensors[name] = x.numpy().copy()
        tensors[f"codes/{name}"] = q.numpy().copy()
        for key, part in state.as_dict(packed=True).items():
            tensors[f"codes/{name}.{key}"] = part.numpy().copy()
        tensors[f"back/{name}"] = bnb.dequantize_4bit(q, state).numpy().copy()
        if double:
            absmax = four_bits(codec, x.flatten(), block)[1]
            assert float(state.offset) == float(absmax.double().mean().float())
        cases.append({"name": name, "codec": codec, "block": block, "doubled": double})
    return tensors, metadata("quant_file", cases)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with the committed files, write nothing")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    good = True
    others = {"quant_double": doubled, "quant_quantile": quantiles, "quant_file": files}
    for name in [*FILES, *others]:
        tensors, described = others[name]() if name in others else blocks_of(name)
        if arguments.check:
            good &= check_fixture(FOLDER / f"{name}.safetensors", tensors, described, tolerance=0)
        else:
            write_fixture(FOLDER / f"{name}.safetensors", tensors, described)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
