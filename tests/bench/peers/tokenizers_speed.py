#!/usr/bin/env python3
"""Encoding and training speed of Snug beside Hugging Face `tokenizers`, interleaved.

    python tokenizers_speed.py --snug build/bin/snug --text docs.jsonl [--tokenizer tok.json ...]
        [--train-megabytes 20] [--vocab-size 1000 8000 32000] [--rounds 3]

docs.jsonl: one {"text": ...} a line, many different documents (a text repeated flatters every word
cache). Both sides work on the same lines or documents; Snug as a command, start, reading and printing
the ids included, the library inside this process without these. MB/s a core is by processor time, MB/s
by the clock with two threads; medians. Training also says whether the merges are equal.
"""
import argparse
import json
import os
import pathlib
import resource
import statistics
import subprocess
import tempfile
import time

import tokenizers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers


def timed(f):
    def used():
        own, children = (resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        return sum(u.ru_utime + u.ru_stime for u in (own, children))
    clock, processor = time.perf_counter(), used()
    f()
    return time.perf_counter() - clock, used() - processor


def median(runs, index):
    return statistics.median(r[index] for r in runs)


def encoding(args, lines, name, folder):
    size = sum(len(line.encode()) + 1 for line in lines) / 1e6
    text = folder / "lines.txt"
    text.write_text("".join(line + "\n" for line in lines), newline="")
    theirs = Tokenizer.from_file(name)
    command = [args.snug, "tokenizer", "encode", "--lines", "--threads", "2", "--tokenizer", name]

    def snug():
        with open(text, "rb") as source:
            subprocess.run(command, stdin=source, stdout=subprocess.DEVNULL, check=True)

    runs = {"snug": [], "tokenizers": []}
    for _ in range(args.rounds):
        runs["snug"].append(timed(snug))
        runs["tokenizers"].append(timed(lambda: theirs.encode_batch_fast(lines, add_special_tokens=False)))
    for side, r in runs.items():
        print(f"| encode {size:.0f} MB, {pathlib.Path(name).name} | {side} | {size / median(r, 1):.1f} MB/s "
              f"| {size / median(r, 0):.1f} MB/s |", flush=True)


def merges(path):
    found = json.loads(pathlib.Path(path).read_text())["model"]["merges"]
    return [tuple(m) if isinstance(m, list) else tuple(m.split(" ")) for m in found]


def training(args, documents, folder):
    size, some = 0, []
    for d in documents:
        some.append(d)
        size += len(d.encode())
        if size > args.train_megabytes * 1e6:
            break
    source, ours, theirs = folder / "train.jsonl", folder / "ours.json", folder / "theirs.json"
    source.write_text("".join(json.dumps({"text": d}) + "\n" for d in some))
    for vocab in args.vocab_size:
        def snug():
            subprocess.run([args.snug, "tokenizer", "train", "--threads", "2", "--vocab-size", str(vocab),
                            "--output", str(ours), str(source)], stdout=subprocess.DEVNULL, check=True)

        def library():
            t = Tokenizer(models.BPE())
            t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
            t.decoder = decoders.ByteLevel()
            t.train_from_iterator(some, trainers.BpeTrainer(
                vocab_size=vocab, special_tokens=["<|endoftext|>"], show_progress=False,
                initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
            t.save(str(theirs))

        runs = {"snug": [], "tokenizers": []}
        for _ in range(args.rounds):
            runs["snug"].append(timed(snug))
            runs["tokenizers"].append(timed(library))
        same = "equal" if merges(ours) == merges(theirs) else "DIFFERENT"
        for side, r in runs.items():
            print(f"| train {vocab} on {size / 1e6:.0f} MB, merges {same} | {side} "
                  f"| {median(r, 1):.1f} s | {median(r, 0):.1f} s |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--snug", default="build/bin/snug")
    parser.add_argument("--text", required=True)
    parser.add_argument("--tokenizer", nargs="*", default=[])
    parser.add_argument("--encode-megabytes", type=float, default=100)
    parser.add_argument("--train-megabytes", type=float, default=20)
    parser.add_argument("--vocab-size", type=int, nargs="*", default=[1000, 8000, 32000])
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    documents = [json.loads(line)["text"] for line in open(args.text)]
    lines, size = [], 0
    for d in documents:
        lines.append(" ".join(d.splitlines()))
        size += len(lines[-1].encode())
        if size > args.encode_megabytes * 1e6:
            break
    print(f"tokenizers {tokenizers.__version__}, {os.cpu_count()} processors, TOKENIZERS_PARALLELISM="
          f"{os.environ['TOKENIZERS_PARALLELISM']}, medians of {args.rounds}\n")
    print("| what | who | a core: MB/s or processor time | two threads: MB/s or time |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        for tokenizer in args.tokenizer:
            encoding(args, lines, tokenizer, pathlib.Path(name))
        training(args, documents, pathlib.Path(name))


if __name__ == "__main__":
    main()
