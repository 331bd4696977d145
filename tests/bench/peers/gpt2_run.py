"""What the two PyTorch peers share: the arguments of a GPT-2 training run, its steps and its memory."""
import argparse
import statistics
import time


def parser(description, **defaults):
    p = argparse.ArgumentParser(description=description)
    shape = {"layers": 12, "width": 768, "heads": 12, "vocab": 50257, "length": 1024, "batch": 4, "steps": 2,
             "warmup": 1, "threads": 2, **defaults}
    for name, value in shape.items():
        p.add_argument(f"--{name}", type=int, default=value)
    p.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    return p


def peak_rss():
    """Bytes; the largest resident set of this process so far."""
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return None


def result(step, args, imported, **more):
    """Runs the steps; the object that is printed: times, tokens per second, memory."""
    seconds = []
    for i in range(args.warmup + args.steps):
        started = time.perf_counter()
        step()
        if i >= args.warmup:
            seconds.append(time.perf_counter() - started)
    median = statistics.median(seconds)
    return {**more, "step_seconds": median, "all_seconds": seconds,
            "tokens_per_second": args.batch * args.length / median, "peak_rss_bytes": peak_rss(),
            "rss_after_import_bytes": imported}
