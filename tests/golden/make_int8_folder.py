#!/usr/bin/env python3
"""Writes int8_folder.safetensors: a folder that transformers saved of a Llama that bitsandbytes holds in int8.

    python3 make_int8_folder.py [--check]

Needs bitsandbytes and accelerate beside what the other scripts need; not part of CI. plain/<name> are the weights in F16,
coded/<name> what transformers saves of them with BitsAndBytesConfig(load_in_8bit=True, llm_int8_threshold=4.5,
llm_int8_skip_modules=["lm_head", "o_proj"]), on the CPU. Metadata: config, that of the plain folder, and
quantization_config, what the other one's config.json has beside it.
"""

import argparse
import json
import pathlib
import sys
import tempfile

import bitsandbytes
import torch
from make_golden import FOLDER, check_fixture, versions, write_fixture
from safetensors import safe_open
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, LlamaConfig, LlamaForCausalLM


def read(folder, prefix):
    with safe_open(folder / "model.safetensors", framework="numpy") as file:
        return {prefix + key: file.get_tensor(key) for key in file.keys()}, json.loads((folder / "config.json").read_text())


def compute():
    torch.manual_seed(701)
    shape = LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                        num_key_value_heads=2, max_position_embeddings=64)
    with tempfile.TemporaryDirectory() as folder:
        plain, coded = pathlib.Path(folder) / "plain", pathlib.Path(folder) / "coded"
        LlamaForCausalLM(shape).half().save_pretrained(plain)
        how = BitsAndBytesConfig(load_in_8bit=True, llm_int8_threshold=4.5, llm_int8_skip_modules=["lm_head", "o_proj"])
        AutoModelForCausalLM.from_pretrained(plain, quantization_config=how, device_map={"": "cpu"}).save_pretrained(coded)
        tensors, config = read(plain, "plain/")
        of_coded, other = read(coded, "coded/")
    quantization = other.pop("quantization_config")
    assert config == other, (config, other)
    metadata = {"format": "pt", "fixture": "int8_folder", "config": json.dumps(config, sort_keys=True),
                "quantization_config": json.dumps(quantization, sort_keys=True),
                "versions": json.dumps({**versions(), "bitsandbytes": bitsandbytes.__version__}, sort_keys=True)}
    return {**tensors, **of_coded}, metadata


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with the committed file, write nothing")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    tensors, metadata = compute()
    path = FOLDER / "int8_folder.safetensors"
    if arguments.check:
        sys.exit(0 if check_fixture(path, tensors, metadata, tolerance=0) else 1)
    write_fixture(path, tensors, metadata)


if __name__ == "__main__":
    main()
