"""What the planner's choice is worth: measured beside every uniform setting that fits, and beside its own forecast.

    snug calibrate && python3 tests/bench/plan_accuracy.py --snug build/bin/snug --layers 6 --width 384 --heads 6 \\
        --length 256 --batch 16 [--budgets 200MiB,400MiB | --count 4] [--precision bf16] [--rounds 5]

Under each budget the planner chooses; beside it stand all uniform settings that fit: each micro-batch that divides
the batch with each of the recompute presets for all layers, the head's chunk left to the planner. Every setting is
written as a plan (snug plan --json) and followed (plan=FILE) by a process of its own, `snug bench step`. A round
measures every setting once in a new order, and the planner's choices twice: the second run of a round gives the A/A
noise. Budgets share the measurement of equal settings. Ratios are taken within a round; medians over the rounds.

Prints a table, and at the end whether the forecast grew with the budget, how far the choice was from the best
uniform setting and how far the forecast was from the measurement, at the worst budget.
"""
import argparse
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile

PRESETS = ("none", "norms", "norms+mlp", "mlp+attention+norms", "block")


def run(command, codes=(0,)):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode not in codes:
        sys.exit(f"{' '.join(command)}\nfailed with {done.returncode}: {done.stderr[-2000:]}")
    return done


def shape_keys(args):
    model = (
        f"model={{type: gpt2, n_layer: {args.layers}, n_embd: {args.width}, n_head: {args.heads}, "
        f"n_positions: {args.length}, vocab_size: {args.vocab}, resid_pdrop: 0, attn_pdrop: 0, embd_pdrop: 0}}"
    )
    return [model, f"precision={args.precision}", f"max_length={args.length}", f"global_batch_size={args.batch}",
            f"threads={args.threads}"] + args.snug_key


class Settings:
    """Plans by what they decide; each is measured once a round however many budgets it stands under."""

    def __init__(self, args, folder):
        self.args, self.folder, self.plans, self.times = args, folder, {}, {}

    def plan(self, memory, keys=()):
        """The plan under a budget with these keys, and its name; None if it does not fit."""
        words = [self.args.snug, "plan", *shape_keys(self.args), f"memory={memory}", *keys, "--json"]
        text = run(words, (0, 3)).stdout
        plan = json.loads(text)
        if not plan["fits"]:
            return None, plan
        d = plan["decisions"]
        name = f"{d['micro_batch']} x {d['gradient_accumulation_steps']}, head {d['head_rows']}, {d['recompute']}"
        if d["offload"] != "none" or d["offload_optimizer"] != "none":
            name += f", offload {d['offload']}, optimizer {d['offload_optimizer']}"
        if name not in self.plans:
            path = os.path.join(self.folder, f"{len(self.plans)}.json")
            with open(path, "w") as out:
                out.write(text)
            self.plans[name] = path
        return name, plan

    def measure(self, name):
        words = [self.args.snug, "bench", "step", *shape_keys(self.args), f"memory={self.args.most}",
                 f"plan={self.plans[name]}", "--steps", str(self.args.steps), "--json", "--no-roofs"]
        return json.loads(run(words).stdout)["tokens_per_second"]


def divisors(n):
    return [d for d in range(n, 0, -1) if n % d == 0]


def size(text):
    for suffix, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10), ("B", 1)):
        if text.endswith(suffix):
            return int(float(text[: -len(suffix)]) * factor)
    return int(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--snug", default="build/bin/snug")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--heads", type=int, default=6)
    parser.add_argument("--vocab", type=int, default=8192)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--batch", type=int, default=16, help="sequences of an optimizer step")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--budgets", help="e.g. 200MiB,1GiB; without it --count from the least to the most of use")
    parser.add_argument("--count", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=3, help="timed steps of a process, after one that is not")
    parser.add_argument("--most", type=size, default=2**40, help="memory of the processes that measure")
    parser.add_argument("--seed", type=int, default=1, help="of the orders")
    parser.add_argument("--snug-key", action="append", default=[], help="a key=value for snug")
    args = parser.parse_args()
    if args.rounds < 5:
        print("fewer than 5 rounds prove nothing", file=sys.stderr)
    random.seed(args.seed)

    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(args, folder)
        _, open_plan = settings.plan(2**50)
        least = open_plan["minimum_bytes"]
        most = open_plan["engine_bytes"] + open_plan["runtime_bytes"]
        if args.budgets:
            budgets = sorted(size(b) for b in args.budgets.split(","))
        else:
            n = max(2, args.count)
            budgets = [round(least * (most / least) ** (i / (n - 1))) for i in range(n)]
            budgets[-1] = most
        rows = []
        for memory in budgets:
            name, plan = settings.plan(memory)
            if name is None:
                print(f"{memory} B does not fit: {plan['minimum_bytes']} B is the least", file=sys.stderr)
                continue
            uniform = set()
            for micro, preset in itertools.product(divisors(args.batch), PRESETS):
                fits, _ = settings.plan(memory, (f"per_device_train_batch_size={micro}", f"recompute={preset}"))
                if fits:
                    uniform.add(fits)
            rows.append((memory, name, plan, sorted(uniform)))
        chosen = {name for _, name, _, _ in rows}
        times = {name: [] for _, name, _, uniform in rows for name in [name, *uniform]}
        again = {name: [] for name in chosen}
        for r in range(args.rounds):
            order = [(name, times) for name in times] + [(name, again) for name in chosen]
            random.shuffle(order)
            for i, (name, where) in enumerate(order):
                print(f"\rround {r + 1} of {args.rounds}: {i + 1} of {len(order)}   ", end="", file=sys.stderr)
                where[name].append(settings.measure(name))
        print(file=sys.stderr)

    m = statistics.median
    both = {n: [(a + b) / 2 for a, b in zip(times[n], again[n])] if n in again else times[n] for n in times}
    print("| budget MiB | planned (micro x accumulation, head, recompute) | predicted | measured | A/A | predicted / "
          "measured | best uniform of | its tokens/s | planned / best uniform |")
    print("|---|---|---|---|---|---|---|---|---|")
    worst_ratio, worst_error, monotone, before = 9e9, 0.0, True, 0.0
    for memory, name, plan, uniform in rows:
        predicted, measured = plan["predicted_tokens_per_second"], m(both[name])
        noise = m(abs(a / b - 1) for a, b in zip(times[name], again[name]))
        error = predicted / measured - 1
        line = (f"| {memory / 2**20:.0f} | {name} | {predicted:.0f} | {measured:.0f} | {100 * noise:.1f} % "
                f"| {100 * error:+.1f} % | ")
        if uniform:
            best = max(uniform, key=lambda n: m(both[n]))
            ratio = 1.0 if best == name else m(a / b for a, b in zip(both[name], both[best]))
            worst_ratio = min(worst_ratio, ratio)
            line += f"{best} ({len(uniform)}) | {m(both[best]):.0f} | {ratio:.3f} |"
        else:
            line += "none fits | | |"
        print(line)
        worst_error = max(worst_error, abs(error))
        monotone = monotone and predicted >= before
        before = predicted
    cpu = next(line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name"))
    print(f"\n{cpu}, {args.threads} threads, {args.precision}, {rows[0][2]['prediction'] if rows else ''}; medians of "
          f"{args.rounds} rounds of {args.steps} steps.")
    if rows:
        print(f"The forecast {'never falls' if monotone else 'FALLS'} as the budget grows; the choice is at worst "
              f"{worst_ratio:.3f} of the best uniform setting; the forecast is at worst {100 * worst_error:.1f} % off.")


if __name__ == "__main__":
    main()
