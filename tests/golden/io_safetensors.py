"""Safetensors files made by the Python package `safetensors`, and a check of ours.

    python tests/golden/io_safetensors.py           writes tests/golden/io_small.safetensors
    python tests/golden/io_safetensors.py FILE      loads a file that Snug's writer test has left and
                                                    checks that it holds what the fixture holds

The values are a formula, so that the C++ test needs no second copy of them: element i of the tensor
with number k is (7 i + 3 k) mod 256 - 128, which every type below holds exactly or wraps as stated.
"""
import pathlib
import sys

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

HERE = pathlib.Path(__file__).parent
SPECS = [
    ("f32", torch.float32, (3, 5)),
    ("bf16", torch.bfloat16, (4, 4)),
    ("f16", torch.float16, (2, 3, 2)),
    ("f64", torch.float64, (7,)),
    ("i64", torch.int64, (2, 2)),
    ("i32", torch.int32, (5,)),
    ("i16", torch.int16, (3,)),
    ("i8", torch.int8, (9,)),
    ("u8", torch.uint8, (3,)),
    ("bool", torch.bool, (6,)),
    ("f8", torch.float8_e4m3fn, (4,)),
    ("scalar", torch.float32, ()),
    ("empty", torch.float32, (0, 4)),
    ("name with \"quotes\" and 한글", torch.float32, (2,)),
]


def values(k, dtype, shape):
    n = 1
    for extent in shape:
        n *= extent
    v = torch.tensor([(7 * i + 3 * k) % 256 - 128 for i in range(n)], dtype=torch.int64)
    if dtype == torch.bool:
        v = v > 0
    elif dtype == torch.uint8:
        v = v + 128
    elif dtype == torch.float8_e4m3fn:
        v = v.sign()
    return v.to(dtype).reshape(shape)


tensors = {name: values(k, dtype, shape) for k, (name, dtype, shape) in enumerate(SPECS)}
metadata = {"format": "pt", "note": "line\nbreak and \"quotes\""}

if len(sys.argv) == 1:
    save_file(tensors, HERE / "io_small.safetensors", metadata=metadata)
    print((HERE / "io_small.safetensors").stat().st_size, "bytes")
else:
    loaded = load_file(sys.argv[1])
    assert loaded.keys() == tensors.keys(), loaded.keys()
    for name, want in tensors.items():
        got = loaded[name]
        assert got.dtype == want.dtype and got.shape == want.shape, name
        as_bytes = lambda t: t.contiguous().reshape(-1).view(torch.uint8)
        assert torch.equal(as_bytes(got), as_bytes(want)), name
    with safe_open(sys.argv[1], framework="pt") as f:
        assert f.metadata() == metadata, f.metadata()
    print(len(loaded), "tensors equal")
