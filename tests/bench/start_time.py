"""From the start of the process to the end of the first trained step, planning included.

    python3 tests/bench/start_time.py --snug build/bin/snug --text corpus.txt [--against OTHER] [--runs 10] [key=value...]

Trains a GPT-2 of 6 layers of 384 (11.1 M parameters, T = 256, 4 sequences a step, bf16) for one step on a plain
text with a tokenizer of 1024 tokens that is made first. Runs with a second program alternate with those of the
first. Prints medians of what the run says of itself (`startup_seconds` and `step_seconds` of metrics.jsonl, the
parts of its line "started in"), with the least and the most of the sum. `key=value` goes to every run.

Memory that a virtual machine gave back to its host comes back when it is touched: `--warm-up` runs come first and
do not count.
"""
import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile

MODEL = "model={type: gpt2, n_layer: 6, n_embd: 384, n_head: 6, n_positions: 256}"


def snug(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr or done.stdout)
    return done.stdout


def run(program, folder, args):
    out = os.path.join(folder, "run")
    text = snug([
        program, "train", MODEL, f"tokenizer={folder}/tokenizer.json", f"train_data={args.text}", "max_length=256",
        "precision=bf16", "global_batch_size=4", "max_steps=1", "logging_steps=1", "save_steps=0",
        f"output_dir={out}", *args.keys,
    ])
    with open(os.path.join(out, "metrics.jsonl")) as file:
        step = json.loads(file.readline())
    shutil.rmtree(out)
    line = next(x for x in text.splitlines() if x.startswith("started in"))
    parts = {k: float(v) for k, v in re.findall(r"(\w+) ([0-9.]+)", line.split(":", 1)[1].split(";")[0])}
    return dict(parts, start=step["startup_seconds"], step=step["step_seconds"],
                total=step["startup_seconds"] + step["step_seconds"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--snug", required=True)
    parser.add_argument("--against")
    parser.add_argument("--text", required=True)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--warm-up", type=int, default=2)
    parser.add_argument("keys", nargs="*")
    args = parser.parse_intermixed_args()
    programs = [args.snug] + ([args.against] if args.against else [])
    with tempfile.TemporaryDirectory() as folder:
        snug([args.snug, "tokenizer", "train", "--vocab-size", "1024", "--output", f"{folder}/tokenizer.json", args.text])
        results = [[] for _ in programs]
        for k in range(args.warm_up + args.runs):
            for program, result in zip(programs, results):
                measured = run(program, folder, args)
                if k >= args.warm_up:
                    result.append(measured)
    names = ["setup", "plan", "data", "memory", "weights", "files", "start", "step", "total"]
    print("| program | " + " | ".join(names) + " | least to most |")
    print("|" + "---|" * (len(names) + 2))
    for program, result in zip(programs, results):
        cells = [f"{statistics.median(r.get(n, 0.0) for r in result):.3f}" for n in names]
        totals = [r["total"] for r in result]
        print(f"| {program} | " + " | ".join(cells) + f" | {min(totals):.3f} to {max(totals):.3f} |")


if __name__ == "__main__":
    main()
