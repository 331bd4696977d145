#!/usr/bin/env python3
"""Kills a training run at random moments and holds every resume to the run that nothing happened to.

    kill_campaign.py --snug build/bin/snug [--preload build/lib/libsnug_bad_world.so]
                     [--kills 50] [--inside 15] [--seed 1] [--runs 10] [--folder DIR]
                     [--ranks 3 --zero 2] [KEY=VALUE ...]

A run of 40 steps saves every 2 steps and evaluates every 3. It is killed with SIGKILL at moments drawn
from the seed, some anywhere, at least `--inside` of them while a folder checkpoint-N.tmp is being
written, goes on with resume=latest, is killed again, and so on until it is through; then metrics.jsonl
(but for times) and the bytes of the last weights and optimizer state are compared with those of a run
that was left alone. With --preload writes are slowed down, so that they fill a good part of the time.
With --ranks the run has several, one of which is killed, and has to end within --seconds with exit code 1,
naming it. Keys are the run's (offload_optimizer=disk). Exit code 1 if a resume fails or a bit differs.
"""

import argparse
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

STEPS, SAVE = 40, 2


def files_of(ranks):
    large = ["model", "optimizer"]
    if ranks > 1:
        large = [f"{name}-rank-{rank}" for name in large for rank in range(ranks)]
    return ["final/model.safetensors"] + [f"checkpoint-{STEPS}/{name}.safetensors" for name in large]


def make_text(path):
    words = random.Random(7)
    who = ["the cat", "a dog", "my old friend", "the river", "one small bird"]
    does = ["sees", "finds", "follows", "remembers", "crosses", "opens"]
    what = ["the long road", "a red door", "some warm bread", "the quiet sea"]
    lines = [f"{words.choice(who)} {words.choice(does)} {words.choice(what)}.\n" for _ in range(2000)]
    path.write_text("".join(lines))


def curve(run):
    """Lines of metrics.jsonl without what a clock measured."""
    timed = {"tokens_per_second", "step_seconds", "elapsed_seconds", "time", "eval_runtime", "startup_seconds",
             "predicted_tokens_per_second", "leg"}
    out = []
    for line in (run / "metrics.jsonl").read_text().splitlines():
        out.append({k: v for k, v in json.loads(line).items() if k not in timed})
    return out


def writing(run):
    """The checkpoint on its way, or None."""
    try:
        return next((n for n in os.listdir(run) if n.startswith("checkpoint-") and n.endswith(".tmp")), None)
    except FileNotFoundError:
        return None


def processes_of(pid):
    """Of the ranks that a command has started, in their order."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                stat = pathlib.Path("/proc", entry, "stat").read_text()
            except OSError:
                continue
            if int(stat[stat.rindex(")") + 2:].split()[1]) == pid:
                found.append(int(entry))
    return sorted(found)


def complete(run):
    return [p for p in run.glob("checkpoint-*") if (p / "COMPLETE").exists() and not p.name.endswith(".tmp")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--snug", required=True)
    parser.add_argument("--preload")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--inside", type=int, default=15)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", type=int, default=10, help="over how many runs the kills are spread")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--zero", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=30, help="within which ranks end that another has left")
    parser.add_argument("--folder", help="where to work; default: a temporary one")
    parser.add_argument("keys", nargs="*", help="of the run, beside its own")
    options = parser.parse_args()
    snug = str(pathlib.Path(options.snug).resolve())
    draw = random.Random(options.seed)
    base = pathlib.Path(tempfile.mkdtemp(prefix="snug-kill-", dir=options.folder))
    make_text(base / "text.txt")
    environment = dict(os.environ, XDG_CACHE_HOME=str(base / "cache"))
    subprocess.run(
        [snug, "tokenizer", "train", "--vocab-size", "400", "--output", str(base / "tok.json"), str(base / "text.txt")],
        check=True, stdout=subprocess.DEVNULL, env=environment)
    common = [
        snug, "train",
        "model={type: gpt2, n_layer: 3, n_embd: 64, n_head: 4, n_positions: 64, resid_pdrop: 0.1, embd_pdrop: 0.1, "
        "attn_pdrop: 0.1}",
        f"tokenizer={base}/tok.json", f"train_data={base}/text.txt", "eval_fraction=0.1", "max_length=48",
        "global_batch_size=8", f"max_steps={STEPS}", "learning_rate=0.01", "logging_steps=1", "threads=2",
        "memory=128MiB", f"save_steps={SAVE}", "eval_steps=3", "save_total_limit=3", "load_best_model_at_end=true",
        "save_buffer=64KiB"]
    if options.ranks > 1:
        common += [f"ranks={options.ranks}", f"zero={options.zero}", "threads=1"]
    common += options.keys
    if options.preload:
        environment |= {
            "LD_PRELOAD": str(pathlib.Path(options.preload).resolve()),
            "BAD_WORLD_FILES": ".safetensors.tmp", "BAD_WORLD_SLOW": "0.002"}

    def start(run):
        words = [*common, f"output_dir={run}"]
        if complete(run):
            words.append("resume=latest")
        elif run.exists():
            shutil.rmtree(run)
        return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)

    began = time.monotonic()
    whole = start(base / "whole")
    out, err = whole.communicate()
    if whole.returncode != 0:
        sys.exit(f"the run that is left alone failed:\n{err}")
    length = time.monotonic() - began
    wanted = curve(base / "whole")
    print(f"seed {options.seed}; a run alone takes {length:.2f} s", flush=True)

    kills = inside = torn = resumes = failures = 0
    run_number = 0
    while kills < options.kills or inside < options.inside:
        run_number += 1
        run = base / f"run{run_number}"
        left = -(-options.kills // options.runs)
        while left > 0:
            aim_inside = draw.random() < 0.5 or options.inside - inside >= options.kills - kills
            moment = draw.random()
            resuming = bool(complete(run))
            child = start(run)
            resumes += resuming
            first = time.monotonic()
            if aim_inside:
                # Some way into the run, then into a write.
                time.sleep(moment * length * 0.4)
                while child.poll() is None and not writing(run):
                    time.sleep(0.0005)
                time.sleep(draw.random() * 0.02)
            else:
                time.sleep(moment * length * 0.9)
            if child.poll() is not None:
                out, err = child.communicate()
                if child.returncode != 0:
                    print(f"run {run_number}: exit code {child.returncode}\n{err}")
                    failures += 1
                break  # it was through before the kill
            now = writing(run)
            ranks = processes_of(child.pid) if options.ranks > 1 else []
            victim = draw.randrange(len(ranks)) if ranks else -1
            if ranks:
                os.kill(ranks[victim], signal.SIGKILL)
            else:
                child.send_signal(signal.SIGKILL)
            killed = time.monotonic()
            out, err = child.communicate()
            if ranks and (child.returncode != 1 or f"rank {victim}: " not in err or
                          time.monotonic() - killed > options.seconds):
                print(f"run {run_number}: rank {victim} killed: exit code {child.returncode} after "
                      f"{time.monotonic() - killed:.1f} s\n{err}")
                failures += 1
            now = now if now and writing(run) == now else None
            kills += 1
            left -= 1
            inside += now is not None
            torn += any(not (p / "COMPLETE").exists() for p in run.glob("checkpoint-*"))
            print(
                f"kill {kills}: run {run_number}, {time.monotonic() - first:.3f} s after its start"
                f"{', resumed' if resuming else ''}, {'inside ' + now if now else 'between writes'}", flush=True)
        child = start(run)
        resumes += bool(complete(run))
        out, err = child.communicate()
        if child.returncode != 0:
            print(f"run {run_number}: the last resume gave exit code {child.returncode}\n{err}")
            failures += 1
            continue
        same = curve(run) == wanted
        for name in files_of(options.ranks):
            same &= (run / name).read_bytes() == (base / "whole" / name).read_bytes()
        print(f"run {run_number}: {'the same to the bit' if same else 'DIFFERENT'}", flush=True)
        failures += not same
        if same:
            shutil.rmtree(run)
    print(
        f"{kills} kills, {inside} inside a write, {resumes} resumes, {run_number} runs compared, "
        f"{failures} failures, {time.monotonic() - began:.0f} s")
    if failures == 0 and not options.folder:
        shutil.rmtree(base)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
