"""Reads what a run of `snug train` writes for others: TensorBoard's event files with tensorboard's own
EventAccumulator, trainer_state.json with transformers' TrainerState, metrics.csv with Python's csv; and
compares all three with metrics.jsonl.

  watch_check.py RUN [CHECKPOINT ...]     RUN is an output_dir; folders checkpoint-N are found in it
"""
import csv
import json
import math
import pathlib
import sys

import numpy as np
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from transformers.trainer_callback import TrainerState

run = pathlib.Path(sys.argv[1])
lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
steps = [m for m in lines if "loss" in m]
evals = [m for m in lines if "eval_loss" in m]


def same(what, a, b):
    if a != b:
        print("FAILED:", what, "\n", a, "\n", b)
        sys.exit(1)


def f32(values):
    return [float(np.float32(math.nan if v is None else v)) for v in values]


files = list((run / "runs").glob("*tfevents*"))
same("one event file", len(files), 1)
for source in (str(files[0]), str(run / "runs")):
    events = EventAccumulator(source, size_guidance={"scalars": 0})
    events.Reload()
    tags = {"train/loss": (steps, "loss"), "lr": (steps, "learning_rate"), "grad_norm": (steps, "grad_norm"),
            "tokens_per_second": (steps, "tokens_per_second")}
    if evals:
        tags |= {"eval/loss": (evals, "eval_loss"), "eval/perplexity": (evals, "eval_perplexity")}
    same("tags", sorted(events.Tags()["scalars"]), sorted(tags))
    for tag, (source_lines, key) in tags.items():
        got = events.Scalars(tag)
        same(tag + " steps", [e.step for e in got], [m["step"] for m in source_lines])
        want = f32(m[key] for m in source_lines)
        for e, w in zip(got, want):
            # metrics.jsonl holds 9 digits of the losses and one decimal of the rate.
            if not (math.isnan(w) or abs(e.value - w) <= max(1e-6 * abs(w), 0.06 if "tokens" in tag else 0)):
                same(tag, e.value, w)

with open(run / "metrics.csv", newline="") as f:
    rows = list(csv.DictReader(f))
same("csv rows", len(rows), len(lines))
for row, line in zip(rows, lines):
    for key, v in line.items():
        if v is None:
            same("csv " + key, row[key], "")
        elif isinstance(v, (int, float)):
            same("csv " + key, float(row[key]), float(v))
        else:
            same("csv " + key, row[key], v)
    for key in set(row) - set(line):
        same("csv empty " + key, row[key], "")

for folder in [run] + sorted(run.glob("checkpoint-*")):
    state = TrainerState.load_from_json(str(folder / "trainer_state.json"))
    kept = [m for m in lines if m["step"] <= state.global_step]
    same(f"{folder.name} log_history", state.log_history, kept)
    if folder != run:
        same(f"{folder.name} step", folder.name, f"checkpoint-{state.global_step}")
    known = [m for m in kept if "eval_loss" in m]
    if known:
        best = min(known, key=lambda m: m["eval_loss"])
        same("best step", state.best_global_step, best["step"])
        assert abs(state.best_metric - best["eval_loss"]) < 1e-8 * best["eval_loss"]
print(f"{run}: {len(steps)} logged steps, {len(evals)} evaluations: event file, csv and "
      f"{1 + len(list(run.glob('checkpoint-*')))} trainer states agree")
