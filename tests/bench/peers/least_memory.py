"""The least memory in which GPT-2 trains: Snug at the smallest budget of its plan, and PyTorch with checkpointing.

    python3 tests/bench/peers/least_memory.py --snug build/bin/snug [--precisions fp32,bf16] [--pairs 5]

PyTorch is transformers' GPT2LMHeadModel (transformers_gpt2.py): one sequence at a time, gradient checkpointing,
scaled_dot_product_attention, autocast for bf16. Its least peak is looked for first, over the forms of AdamW (fused,
foreach, a loop) and over two settings of the C library's heap: as it is, and one that gives pages back at once. Of
those within 2 % of the smallest peak the fastest then runs in turn with Snug, once at the least memory of its plan and
once at the PyTorch process's peak: the budget is that peak less what Snug's process holds beside its engine (measured
in the run at the least memory). Memory is the peak resident set of the whole process (VmHWM), interpreter and
libraries included; what `import torch` takes alone is printed below the table. Random tokens, dropout 0, clipping and
AdamW on all sides. Prints a Markdown table.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
HEAPS = {"": {}, "heap trimmed": {"MALLOC_ARENA_MAX": "1", "MALLOC_TRIM_THRESHOLD_": "0",
                                  "MALLOC_MMAP_THRESHOLD_": "65536"}}


def run(command, environment=None, codes=(0,)):
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **(environment or {})})
    if done.returncode not in codes:
        sys.exit(f"{' '.join(command)}\nfailed: {done.stderr[-2000:]}")
    return json.loads(done.stdout)


class Snug:
    def __init__(self, args, precision):
        model = (
            f"model={{type: gpt2, n_layer: {args.layers}, n_embd: {args.width}, n_head: {args.heads}, n_positions: "
            f"{args.length}, vocab_size: {args.vocab}, resid_pdrop: 0, attn_pdrop: 0, embd_pdrop: 0}}"
        )
        self.program, self.steps = args.snug, args.steps
        self.keys = [model, f"precision={precision}", f"max_length={args.length}", f"global_batch_size={args.batch}",
                     f"threads={args.threads}"] + args.snug_key

    def plan(self, memory):
        return run([self.program, "plan", *self.keys, f"memory={memory}", "--json"], codes=(0, 3))

    def measure(self, memory):
        return run([self.program, "bench", "step", *self.keys, f"memory={memory}", "--steps", str(self.steps),
                    "--json", "--no-roofs"])


def torch_run(args, precision, adamw, heap):
    command = [sys.executable, os.path.join(HERE, "transformers_gpt2.py"), "--precision", precision, "--adamw", adamw]
    for key in ("layers", "width", "heads", "vocab", "length", "batch", "threads", "steps"):
        command += [f"--{key}", str(getattr(args, key))]
    return run(command, HEAPS[heap])


def words(plan):
    d = plan["decisions"]
    return (f"micro-batch {d['micro_batch']}, recompute {d['recompute']}, head {d['head_rows']}"
            + ("" if d["offload"] == "none" else f", offload {d['offload']}"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--snug", default="build/bin/snug")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--vocab", type=int, default=50257)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=4, help="sequences of an optimizer step")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=2, help="timed steps of a process, after one that is not")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--precisions", default="fp32,bf16")
    parser.add_argument("--snug-key", action="append", default=[], help="a key=value for snug")
    args = parser.parse_args()

    m = statistics.median
    print("| precision | | peak RSS GiB | tokens/s | spread | against PyTorch |")
    print("|---|---|---|---|---|---|")
    peer = None
    for precision in args.precisions.split(","):
        tried = {(a, h): torch_run(args, precision, a, h) for a in ("fused", "foreach", "loop") for h in HEAPS}
        smallest = min(r["peak_rss_bytes"] for r in tried.values())
        near = [k for k in tried if tried[k]["peak_rss_bytes"] <= 1.02 * smallest]
        adamw, heap = max(near, key=lambda k: tried[k]["tokens_per_second"])
        snug = Snug(args, precision)
        least = snug.plan(1 << 20)["minimum_bytes"]
        least_plan = snug.plan(least)
        first = snug.measure(least)
        beside = first["peak_resident_bytes"] - first["engine_bytes"]
        equal_plan, equal = least_plan, least
        target = tried[adamw, heap]["peak_rss_bytes"]
        if target - beside + least_plan["runtime_bytes"] > least:
            equal = (target - beside + least_plan["runtime_bytes"]) // 4096 * 4096
            equal_plan = snug.plan(equal)
        rows = {"least": [], "torch": [], "equal": []}
        for _ in range(args.pairs):
            rows["least"].append(snug.measure(least))
            rows["torch"].append(torch_run(args, precision, adamw, heap))
            rows["equal"].append(snug.measure(equal))
        peer = rows["torch"][0]
        peaks = {"least": m(r["peak_resident_bytes"] for r in rows["least"]),
                 "torch": m(r["peak_rss_bytes"] for r in rows["torch"]),
                 "equal": m(r["peak_resident_bytes"] for r in rows["equal"])}
        title = {"torch": f"PyTorch, checkpointing, AdamW {adamw}{', ' + heap if heap else ''}",
                 "least": f"Snug, least memory ({words(least_plan)})",
                 "equal": f"Snug, PyTorch's memory ({words(equal_plan)})"}
        for row in ("torch", "least", "equal"):
            rates = [r["tokens_per_second"] for r in rows[row]]
            against = ""
            if row != "torch":
                ratio = m(a["tokens_per_second"] / b["tokens_per_second"] for a, b in zip(rows[row], rows["torch"]))
                against = f"{peaks[row] / peaks['torch']:.2f} of the memory, {ratio:.2f} x the speed"
            print(f"| {precision} | {title[row]} | {peaks[row] / 2**30:.3f} | {m(rates):.0f} "
                  f"| {100 * (max(rates) / min(rates) - 1):.1f} % | {against} |", flush=True)
        print(f"{precision}: PyTorch's peaks in GiB: "
              + ", ".join(f"{a}{' ' + h if h else ''} {r['peak_rss_bytes'] / 2**30:.3f}"
                          for (a, h), r in tried.items()), file=sys.stderr)
    cpu = next(line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name"))
    print(f"\n{cpu}, {args.threads} threads, {args.layers} layers of width {args.width}, T = {args.length}, {args.batch} "
          f"sequences a step; PyTorch {peer['torch']}, transformers {peer['transformers']} "
          f"({peer['rss_after_import_bytes'] / 2**30:.3f} GiB after import); medians of {args.pairs} rounds run in turn.")


if __name__ == "__main__":
    main()
