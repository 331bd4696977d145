"""Snug beside PyTorch on this machine: training steps of the same models, run in turn, medians.

    python3 tests/bench/peers/compare.py --snug build/bin/snug [--rows 124m,10m,medium | --folder FOLDER] [--pairs 3]

Every pair runs Snug, PyTorch and Snug again as whole processes; the two Snug runs of a pair give the A/A
noise. With --share 0.55 a pair begins with PyTorch, and Snug gets that share of its peak as `memory`, so
that the speed at a fraction of the memory is what is compared. Needs torch in the Python that runs it. Dropout is off on both sides and the random tokens are
made inside the timed step on both sides. Peak memory is the process's largest resident set, as the
operating system counts it: VmHWM after the last step, before Snug measures the roofs. For PyTorch that
includes the interpreter and its libraries, whose size after `import torch` is printed beside it. Prints a Markdown table, then the machine.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROWS = {
    "10m": dict(layers=6, width=384, heads=6, vocab=1024, length=256, batch=16, steps=5),
    "124m": dict(layers=12, width=768, heads=12, vocab=50257, length=1024, batch=4, steps=2),
    "medium": dict(layers=24, width=1024, heads=16, vocab=50257, length=1024, batch=4, steps=1),
}


def run(command):
    """What a finished process printed as JSON, and its peak resident bytes."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\nfailed: {done.stderr[-2000:]}")
    result = json.loads(done.stdout)
    return result, result.get("peak_resident_bytes") or result["peak_rss_bytes"]


def snug_command(args, row, precision):
    model = f"model={args.folder}" if args.folder else (
        f"model={{type: gpt2, n_layer: {row['layers']}, n_embd: {row['width']}, n_head: {row['heads']}, "
        f"n_positions: {row['length']}, vocab_size: {row['vocab']}, resid_pdrop: 0, attn_pdrop: 0, embd_pdrop: 0}}"
    )
    return [
        args.snug, "bench", model, f"precision={precision}", f"max_length={row['length']}",
        f"global_batch_size={row['batch']}", f"per_device_train_batch_size={row['batch']}",
        f"threads={args.threads}", "--steps", str(row["steps"]), "--json",
    ] + args.snug_key


def torch_command(args, row, precision, mode):
    if args.folder:
        return [sys.executable, os.path.join(HERE, "transformers_folder.py"), "--folder", args.folder, "--precision",
                precision, "--threads", str(args.threads), "--steps", str(row["steps"]), "--length", str(row["length"]),
                "--batch", str(row["batch"])] + (["--checkpointing"] if mode == "checkpointing" else [])
    padded = (row["vocab"] + 127) // 128 * 128
    command = [
        sys.executable, os.path.join(HERE, "pytorch_gpt2.py"), "--precision", precision,
        "--threads", str(args.threads), "--steps", str(row["steps"]), "--vocab", str(padded),
    ]
    for key in ("layers", "width", "heads", "length", "batch"):
        command += [f"--{key}", str(row[key])]
    return command + (["--compile"] if mode == "compiled" else [])


def gib(value):
    return f"{value / 2**30:.2f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--snug", default="build/bin/snug")
    parser.add_argument("--rows", default="10m,124m,medium")
    parser.add_argument("--precisions", default="bf16,fp32")
    parser.add_argument("--modes", default="eager", help="eager, compiled, or both with a comma")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--folder", help="a model folder in place of --rows; --modes are eager and checkpointing")
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--share", type=float, help="memory for Snug, as a share of PyTorch's peak")
    parser.add_argument("--snug-key", action="append", default=[], help="a key=value for snug bench")
    args = parser.parse_args()

    print("| model, T, tokens a step | precision | PyTorch | Snug tokens/s | PyTorch tokens/s | Snug / PyTorch | A/A "
          "| Snug RSS GiB | PyTorch RSS GiB | RSS ratio |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    version = imported = None
    if args.folder:
        args.rows = os.path.basename(os.path.normpath(args.folder))
        ROWS[args.rows] = dict(length=args.length, batch=args.batch, steps=2)
    for name in args.rows.split(","):
        row = ROWS[name]
        for precision in args.precisions.split(","):
            for mode in args.modes.split(","):
                ours, theirs, ratios, noise, rss, peer_rss = [], [], [], [], [], []
                for _ in range(args.pairs):
                    if args.share:
                        b, b_rss = run(torch_command(args, row, precision, mode))
                        budget = [f"memory={int(args.share * b_rss) >> 20}MiB"]
                        a, a_rss = run(snug_command(args, row, precision) + budget)
                        c, c_rss = run(snug_command(args, row, precision) + budget)
                    else:
                        a, a_rss = run(snug_command(args, row, precision))
                        b, b_rss = run(torch_command(args, row, precision, mode))
                        c, c_rss = run(snug_command(args, row, precision))
                    first, second = a["tokens_per_second"], c["tokens_per_second"]
                    ours += [first, second]
                    theirs.append(b["tokens_per_second"])
                    ratios.append((first + second) / 2 / b["tokens_per_second"])
                    noise.append(max(first, second) / min(first, second) - 1)
                    rss += [a_rss, c_rss]
                    peer_rss.append(b_rss)
                    version, imported = b["torch"], b["rss_after_import_bytes"]
                m = statistics.median
                print(
                    f"| {name}, {row['length']}, {row['batch'] * row['length']} | {precision} | {mode} "
                    f"| {m(ours):.0f} | {m(theirs):.0f} | {m(ratios):.2f} | {100 * m(noise):.1f} % "
                    f"| {gib(m(rss))} | {gib(m(peer_rss))} | {m(rss) / m(peer_rss):.2f} |",
                    flush=True,
                )
    cpu = next(line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name"))
    print(f"\n{cpu}, {args.threads} threads; PyTorch {version} ({gib(imported)} GiB after import); medians of "
          f"{args.pairs} pairs.")


if __name__ == "__main__":
    main()
