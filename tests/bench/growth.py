"""How throughput grows: tokens/s of the training step against length, layers and micro-batch.

    python3 tests/bench/growth.py --snug build/bin/snug [--precision bf16] [--svg growth.svg]

One axis moves at a time from the base model (6 layers, width 512, 8 heads, vocabulary 8192, T = 512,
micro-batch 4). The length curve holds the tokens of a micro-step at 8192. Each point is the median of
`--repeats` runs; the order of the points is shuffled in each repeat, so that a slow minute of the machine
does not bend a curve. GFLOP/s counts the model's arithmetic, attention included, so that a falling
tokens/s at large T can be told from a falling rate. Prints Markdown tables; --svg draws them.
"""
import argparse
import json
import random
import statistics
import subprocess
import sys

BASE = dict(layers=6, width=512, heads=8, length=512, batch=4)
AXES = {
    "length": [dict(length=t, batch=8192 // t) for t in (128, 256, 512, 1024, 2048, 4096, 8192)],
    "layers": [dict(layers=n) for n in (1, 2, 4, 8, 16, 24)],
    "batch": [dict(batch=b) for b in (1, 2, 4, 8, 16)],
    "width": [dict(width=c, heads=c // 64) for c in (128, 256, 512, 768, 1024)],
}


def measure(args, point):
    model = (
        f"model={{type: gpt2, n_layer: {point['layers']}, n_embd: {point['width']}, n_head: {point['heads']}, "
        f"n_positions: {point['length']}, vocab_size: 8192, resid_pdrop: 0, attn_pdrop: 0, embd_pdrop: 0}}"
    )
    command = [
        args.snug, "bench", model, f"precision={args.precision}", f"max_length={point['length']}",
        f"global_batch_size={point['batch']}", f"per_device_train_batch_size={point['batch']}",
        f"threads={args.threads}", "--steps", "3", "--json",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr)
    result = json.loads(done.stdout)
    return result["tokens_per_second"], result["model_flops_per_second"] * 1e-9


def svg(curves, precision):
    """Four small plots side by side, tokens/s and GFLOP/s each scaled to its own largest value."""
    width, height, gap = 260, 180, 40
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{len(curves) * (width + gap) + gap}" height="{height + 90}" '
        'font-family="sans-serif" font-size="11"><style>text{fill:#444}</style>',
        f'<text x="{gap}" y="18" font-size="14">training step, {precision}: tokens/s (solid) and GFLOP/s (dashed), '
        "each against its own maximum</text>",
    ]
    for i, (axis, points) in enumerate(curves.items()):
        x0, y0 = gap + i * (width + gap), 40
        parts.append(f'<rect x="{x0}" y="{y0}" width="{width}" height="{height}" fill="none" stroke="#bbb"/>')
        for series, (dash, colour) in enumerate((("none", "#1f6feb"), ("5 3", "#b35900"))):
            values = [p[1 + series] for p in points]
            top = max(values)
            places = [
                (x0 + width * k / (len(points) - 1), y0 + height * (1 - 0.95 * v / top)) for k, v in enumerate(values)
            ]
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
            parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-dasharray="{dash}"/>')
            for (x, y), v in zip(places, values):
                parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"><title>{v:.0f}</title></circle>')
            parts.append(
                f'<text x="{x0}" y="{y0 + height + 32 + 14 * series}">max {top:.0f} '
                f'{("tokens/s", "GFLOP/s")[series]}</text>'
            )
        for k, p in enumerate(points):
            x = x0 + width * k / (len(points) - 1)
            parts.append(f'<text x="{x:.1f}" y="{y0 + height + 14}" text-anchor="middle">{p[0]}</text>')
        parts.append(f'<text x="{x0 + 4}" y="{y0 + 14}">{axis}</text>')
    return "\n".join(parts + ["</svg>"]) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--snug", default="build/bin/snug")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--axes", default=",".join(AXES))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--svg")
    args = parser.parse_args()
    axes = args.axes.split(",")
    work = [(axis, k) for axis in axes for k in range(len(AXES[axis]))]
    runs = {key: [] for key in work}
    for _ in range(args.repeats):
        random.shuffle(work)
        for axis, k in work:
            runs[axis, k].append(measure(args, {**BASE, **AXES[axis][k]}))
    curves = {}
    for axis in axes:
        print(f"\n| {axis} | tokens/s | GFLOP/s | spread of tokens/s |\n|---|---|---|---|")
        curves[axis] = []
        for k, change in enumerate(AXES[axis]):
            tokens = [r[0] for r in runs[axis, k]]
            rate = statistics.median(r[1] for r in runs[axis, k])
            middle = statistics.median(tokens)
            curves[axis].append((change[axis], middle, rate))
            print(f"| {change[axis]} | {middle:.0f} | {rate:.0f} | {100 * (max(tokens) - min(tokens)) / middle:.0f} % |")
    if args.svg:
        with open(args.svg, "w") as file:
            file.write(svg(curves, args.precision))


if __name__ == "__main__":
    main()
