#!/usr/bin/env python3
"""Loads a folder written by Snug with transformers and prints what it sees. Needs Python; not part of CI.

    python3 interop_check.py DIR
    python3 interop_check.py DIR --data tokens.bin --max-length 128 --samples 50
    python3 interop_check.py DIR --data text.txt --max-length 128 --dtype float64 --json

Prints the parameter count, anything missing or unexpected in the weights, the tokens and the loss of a text, a
greedy continuation of 20 tokens (fewer if the end token comes), and, with --data, the mean loss over that file: window i holds the
max_length + 1 tokens that start at i * stride (stride: max_length + 1 unless given), its first max_length are
the inputs, its last max_length the targets; what is left after the last whole window is not used. Exit code 1
if the folder does not load cleanly or a result is not finite.
"""

import argparse
import json
import math
import pathlib
import sys

import numpy as np
import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

LLMC_MAGIC = {20240520: np.uint16, 20240801: np.uint32}
LLMC_HEADER = 256  # int32 words


def read_tokens(path, tokenizer, token_bytes):
    """Token ids of a .bin (llm.c header, or raw integers) or of a text file, which is encoded whole."""
    if path.suffix != ".bin":
        return np.array(tokenizer.encode(path.read_text(encoding="utf-8"), add_special_tokens=False), dtype=np.int64)
    raw = path.read_bytes()
    if len(raw) >= 4 * LLMC_HEADER:
        header = np.frombuffer(raw[: 4 * LLMC_HEADER], dtype="<i4")
        if int(header[0]) in LLMC_MAGIC:
            tokens = np.frombuffer(raw[4 * LLMC_HEADER :], dtype=LLMC_MAGIC[int(header[0])])
            if len(tokens) != header[2]:
                raise SystemExit(f"{path}: the header says {header[2]} tokens, the file has {len(tokens)}")
            return tokens.astype(np.int64)
    return np.frombuffer(raw, dtype={2: "<u2", 4: "<u4"}[token_bytes]).astype(np.int64)


def data_loss(model, tokens, max_length, stride, samples, batch):
    starts = list(range(0, len(tokens) - max_length, stride))
    if samples is not None:
        starts = starts[:samples]
    if not starts:
        raise SystemExit(f"{len(tokens)} tokens hold no window of {max_length + 1}")
    total = 0.0
    for first in range(0, len(starts), batch):
        windows = np.stack([tokens[s : s + max_length + 1] for s in starts[first : first + batch]])
        windows = torch.from_numpy(windows)
        logits = model(input_ids=windows[:, :-1]).logits
        if logits.dtype != torch.float64:
            logits = logits.float()
        total += torch.nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten(), reduction="sum").item()
    return total / (len(starts) * max_length), len(starts)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dir", type=pathlib.Path)
    parser.add_argument("--text", default="First Citizen:\nBefore we proceed any further, hear me speak.\n")
    parser.add_argument("--data", type=pathlib.Path)
    parser.add_argument("--max-length", type=int)
    parser.add_argument("--samples", type=int, help="at most so many windows (default: all)")
    parser.add_argument("--stride", type=int, help="tokens between window starts (default: max_length + 1)")
    parser.add_argument("--token-bytes", type=int, choices=[2, 4], default=2, help="of a .bin without a header")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--dtype", choices=["float32", "float64", "bfloat16"], default="float32")
    parser.add_argument("--new-tokens", type=int, default=20)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of lines")
    arguments = parser.parse_args()

    if not arguments.json:
        print(f"transformers {transformers.__version__}, torch {torch.__version__}, {arguments.dtype}")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    model, info = AutoModelForCausalLM.from_pretrained(
        arguments.dir, dtype=getattr(torch, arguments.dtype), attn_implementation="eager", output_loading_info=True
    )
    model.eval()
    tokenizer = AutoTokenizer.from_pretrained(arguments.dir)
    problems = {key: sorted(map(str, value)) for key, value in info.items() if value}

    ids = tokenizer.encode(arguments.text, add_special_tokens=False)
    positions = model.config.max_position_embeddings
    result = {
        "class": type(model).__name__,
        "parameters": sum(p.numel() for p in model.parameters()),
        "tied_head": model.get_output_embeddings().weight is model.get_input_embeddings().weight,
        "tokenizer": type(tokenizer).__name__,
        "vocabulary": {"model": model.config.vocab_size, "tokenizer": len(tokenizer)},
        "loading_problems": problems,
        "text_ids": ids,
        "text_round_trip": tokenizer.decode(ids, clean_up_tokenization_spaces=False) == arguments.text,
    }
    good = not problems and result["text_round_trip"]
    with torch.no_grad():
        inputs = torch.tensor([ids[:positions]])
        logits = model(input_ids=inputs).logits[0]
        good &= bool(torch.isfinite(logits).all())
        if inputs.shape[1] > 1:
            loss = torch.nn.functional.cross_entropy(logits[:-1].double(), inputs[0, 1:]).item()
            result["text_loss"] = loss
        prompt = inputs[:, -max(1, positions - arguments.new_tokens) :]
        produced = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=min(arguments.new_tokens, positions - prompt.shape[1]),
            do_sample=False,
            pad_token_id=0,
        )[0, prompt.shape[1] :].tolist()
        result["greedy_ids"] = produced
        result["greedy_text"] = tokenizer.decode(produced)
        if arguments.data:
            length = arguments.max_length or positions
            if not 1 <= length <= positions:
                raise SystemExit(f"--max-length {length}: the model has {positions} positions")
            tokens = read_tokens(arguments.data, tokenizer, arguments.token_bytes)
            if len(tokens) and tokens.max() >= model.config.vocab_size:
                raise SystemExit(f"{arguments.data}: token {tokens.max()} is outside {model.config.vocab_size}")
            stride = arguments.stride or length + 1
            loss, windows = data_loss(model, tokens, length, stride, arguments.samples, arguments.batch)
            result["data"] = {
                "tokens": len(tokens), "max_length": length, "stride": stride, "windows": windows,
                "trained_targets": windows * length, "loss": loss, "perplexity": math.exp(min(loss, 700.0)),
            }
            good &= math.isfinite(loss)
    result["good"] = good

    if arguments.json:
        print(json.dumps(result, ensure_ascii=False))
    else:
        for key, value in result.items():
            print(f"{key}: {value!r}" if isinstance(value, str) else f"{key}: {value}")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
