"""Scales of torch.amp.GradScaler over chosen sequences of finite and overflowing steps.

    python3 make_grad_scaler.py > grad_scaler.json

Each case has the settings of the scaler, the steps whose gradients overflow, and after every step
the scale, the growth tracker and how often the optimizer stepped.
"""

import json
import random

import torch

CASES = {
    "usual": dict(init_scale=65536.0, growth_factor=2.0, backoff_factor=0.5, growth_interval=4),
    "every_step": dict(init_scale=3.0, growth_factor=1.5, backoff_factor=0.3, growth_interval=1),
    "odd_factors": dict(init_scale=1000.0, growth_factor=1.1, backoff_factor=0.7, growth_interval=3),
    "to_the_top": dict(init_scale=2.0**120, growth_factor=2.0, backoff_factor=0.5, growth_interval=2),
}
STEPS = 80


def run(name, settings):
    rng = random.Random(name)
    overflow = [rng.random() < 0.2 for _ in range(STEPS)]
    if name == "to_the_top":
        overflow = [i in (30, 60) for i in range(STEPS)]
    scaler = torch.amp.GradScaler("cpu", **settings)
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    steps = 0
    scales, trackers, updates = [], [], []

    def count(*_):
        nonlocal steps
        steps += 1

    optimizer.register_step_post_hook(count)
    scaler.scale(torch.zeros(1))  # makes the scale's tensor
    for bad in overflow:
        weight.grad = torch.full((3,), float("inf") if bad else 0.0)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        trackers.append(scaler.state_dict()["_growth_tracker"])
        updates.append(steps)
    return dict(settings=settings, overflow=overflow, scales=scales, trackers=trackers, updates=updates)


print(json.dumps({name: run(name, settings) for name, settings in CASES.items()}))
