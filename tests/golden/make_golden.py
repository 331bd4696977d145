#!/usr/bin/env python3
"""Writes gpt2_<name>.safetensors: what Hugging Face's GPT-2 computes, in float64, on tiny random models.

    python3 make_golden.py                 write every fixture next to this script
    python3 make_golden.py a d             write only these
    python3 make_golden.py --check         recompute and compare with the committed files (relative 1e-10)
    python3 make_golden.py --sensitivity   how far the losses move when one rule of the recipe is broken

Parameters are drawn in float64, rounded to float32 and only then used in float64, so the F32 tensors in the file are
exactly the numbers the truth was computed with.

    name  L H C V P      B T   what it is for
    a     2 2 24 96 16   2 12  plain GPT-2, T < P: rows T.. of wpe have zero gradient but are decayed
    b     3 3 27 101 24  3 17  odd sizes, head width 9, n_inner 45
    c     2 2 16 50 8    4 1   one token: the query and key parts of the c_attn gradients are exactly zero
    d     1 1 8 13 9     2 9   erf gelu, epsilon 1e-3, T = P
    e     2 4 32 131 20  3 11  ignored targets (18 of 33 trained, sample 2 not at all), n_inner 48, scale_attn_by_inverse_layer_idx
    f     1 2 32 128 16  2 13  untied head (lm_head.weight), V = 128, n_inner 40
    g     2 4 20 37 32   1 29  scale_attn_weights false, relu
    h     2 3 24 37 72   2 70  documents of 37, 1, 1, 25, 6 and 1, 68, 1 tokens kept apart: position_ids begin anew, the mask is causal within each, their first tokens are no targets; the script also runs every document alone

Tensors: every parameter under its Hugging Face name (F32); input_ids, targets (B,T) I64, where targets[b,t]
belongs to logits[b,t] (already shifted) and -100 is ignored; in h also document_start (B,T) I64, the position of
each document's first token; logits (B,T,V); loss [], the mean over trained targets; grad.<parameter> of that
loss, not clipped; grad_norm [], its global norm; adamw_losses (10), the loss before each of 10 AdamW steps on the
same batch; adamw_grad_norms (10), the norm before clipping at each step. All F64. A tied head has no
lm_head.weight: grad.transformer.wte.weight is the sum of both uses. Metadata: config (JSON, as in config.json,
all dropout 0), adamw (JSON: lr, betas, eps, weight_decay, clip_norm, steps, decay_min_rank: only tensors of that
rank or higher are decayed, embeddings included), trained_targets, seed. The clip factor is min(1, clip_norm /
(norm + 1e-6)). Attention is the eager one; the loss is taken outside the model, which would round the logits to
float32. --sensitivity shows what the ten losses can see: breaking one rule (no decay, decay on biases, no clipping,
other betas) moves them by 5e-5 to 1e-2 relative, eps 1e-6 by 4e-6 to 1e-4; a test in float32 must be tighter than
that.
"""

import argparse
import json
import pathlib
import struct
import sys

import numpy as np
import safetensors
import torch
import transformers
from safetensors import safe_open
from safetensors.numpy import save
from transformers import GPT2Config, GPT2LMHeadModel

FOLDER = pathlib.Path(__file__).resolve().parent
SIZE_LIMIT = 300_000  # bytes per fixture
IGNORED = -100

ADAMW = {"lr": 1e-3, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}
CLIP_NORM = 1.0
STEPS = 10

# Every case sets what makes it different; DEFAULTS fills the rest of config.json.
DEFAULTS = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "n_inner": None,
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-5,
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "reorder_and_upcast_attn": False,
    "tie_word_embeddings": True,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
    "bos_token_id": 0,
    "eos_token_id": 0,
}


def case(seed, layers, heads, width, vocab, positions, batch, tokens, ignore="none", documents=None, **config):
    shape = {"n_layer": layers, "n_head": heads, "n_embd": width, "vocab_size": vocab, "n_positions": positions}
    return {"seed": seed, "B": batch, "T": tokens, "ignore": ignore, "documents": documents,
            "config": {**DEFAULTS, **shape, **config}}


CASES = {
    # plain GPT-2; fewer tokens than positions, so the last rows of wpe get no gradient
    "a": case(101, 2, 2, 24, 96, 16, 2, 12),
    # odd everywhere: head width 9, three heads, hidden width not 4C, T and V prime
    "b": case(102, 3, 3, 27, 101, 24, 3, 17, n_inner=45),
    # one token: attention sees only itself, query and key gradients are exactly zero
    "c": case(103, 2, 2, 16, 50, 8, 4, 1),
    # smallest; T fills n_positions; erf gelu; an epsilon large enough to matter
    "d": case(104, 1, 1, 8, 13, 9, 2, 9, activation_function="gelu", layer_norm_epsilon=1e-3),
    # V just above 128; ignored targets, one sample ignored entirely; scores also divided by layer + 1
    "e": case(105, 2, 4, 32, 131, 20, 3, 11, ignore="some", n_inner=48, scale_attn_by_inverse_layer_idx=True),
    # the head has its own weight; V is exactly 128
    "f": case(106, 1, 2, 32, 128, 16, 2, 13, n_inner=40, tie_word_embeddings=False),
    # scores not divided by sqrt(head width); relu; a single sample
    "g": case(107, 2, 4, 20, 37, 32, 1, 29, scale_attn_weights=False, activation_function="relu"),
    # packed documents kept apart: of one token, beginning at 64, ending with the window; T + 1 tokens a row
    "h": case(108, 2, 3, 24, 37, 72, 2, 70, documents=[[37, 1, 1, 25, 7], [1, 68, 1, 1]]),
}


def versions():
    return {
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "safetensors": safetensors.__version__,
        "numpy": np.__version__,
    }


def fixture_bytes(tensors, metadata):
    """Serialised by the safetensors library; its metadata order is random, so the header is rewritten sorted."""
    tensors = {name: np.array(value, order="C") for name, value in tensors.items()}
    blob = save(tensors, metadata=metadata)
    (length,) = struct.unpack("<Q", blob[:8])
    header = json.loads(blob[8 : 8 + length])
    header["__metadata__"] = dict(sorted(metadata.items()))
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + blob[8 + length :]


def write_fixture(path, tensors, metadata):
    blob = fixture_bytes(tensors, metadata)
    if len(blob) >= SIZE_LIMIT:
        raise SystemExit(f"{path.name}: {len(blob)} bytes, the limit is {SIZE_LIMIT}")
    path.write_bytes(blob)
    print(f"{path.name}: {len(blob)} bytes, {len(tensors)} tensors")


def check_fixture(path, tensors, metadata, tolerance=1e-10, floor=1e-12):
    """Compares fresh results with the committed file; returns True if they agree. No tensor counts as smaller than `floor`."""
    good = True
    with safe_open(path, framework="numpy") as file:
        stored = file.metadata()
        for key in sorted(set(stored) | set(metadata)):
            if key != "versions" and stored.get(key) != metadata.get(key):
                print(f"{path.name}: metadata {key!r} differs")
                good = False
        if set(file.keys()) != set(tensors):
            print(f"{path.name}: tensor names differ: {sorted(set(file.keys()) ^ set(tensors))}")
            return False
        worst = 0.0
        for name, value in tensors.items():
            value = np.asarray(value)
            old = file.get_tensor(name)
            if old.shape != value.shape or old.dtype != value.dtype:
                print(f"{path.name}: {name}: shape or dtype differs")
                good = False
                continue
            scale = max(np.abs(old).max(), floor) if old.size else 1.0
            error = np.abs(old - value).max() / scale if old.size else 0.0
            worst = max(worst, error)
            if not error <= tolerance:
                print(f"{path.name}: {name}: relative difference {error:.3g}")
                good = False
    print(f"{path.name}: {'agrees' if good else 'DIFFERS'}, largest relative difference {worst:.2g}")
    return good


def draw_parameter(name, shape, rng):
    """Random numbers large enough that no term of the model is negligible."""
    noise = rng.standard_normal(shape)
    if ".ln_" in name:
        return 1.0 + 0.1 * noise if name.endswith("weight") else 0.1 * noise
    if name.endswith("bias"):
        return 0.1 * noise
    return noise * (0.15 if "wpe" in name else 0.25)


def build_model(spec):
    rng = np.random.default_rng(spec["seed"])
    config = GPT2Config(**spec["config"], attn_implementation="eager")
    model = GPT2LMHeadModel(config).double()
    model.train()  # dropout is zero, so this changes nothing but is how training runs
    weights = {}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            weights[name] = draw_parameter(name, tuple(parameter.shape), rng).astype(np.float32)
            parameter.copy_(torch.from_numpy(weights[name].astype(np.float64)))
    tied = model.lm_head.weight is model.transformer.wte.weight
    assert tied == spec["config"]["tie_word_embeddings"]
    assert ("lm_head.weight" in weights) != tied

    window = rng.integers(0, config.vocab_size, size=(spec["B"], spec["T"] + 1))
    inputs, targets = window[:, :-1].copy(), window[:, 1:].copy()
    if spec["ignore"] == "some":
        targets[rng.random(targets.shape) < 0.3] = IGNORED
        targets[0, 0] = IGNORED
        targets[0, -1] = IGNORED
        targets[-1, :] = IGNORED
    packed = keep_apart(spec, targets) if spec["documents"] else {}
    return model, weights, torch.from_numpy(inputs), torch.from_numpy(targets), packed


def keep_apart(spec, targets):
    """What transformers is told about packed documents; a document's first token is not a target."""
    B, T = spec["B"], spec["T"]
    starts = np.zeros((B, T), dtype=np.int64)
    mask = np.full((B, 1, T, T), np.finfo(np.float64).min)
    for b, lengths in enumerate(spec["documents"]):
        assert sum(lengths) == T + 1
        begin = 0
        for length in lengths:
            end = min(begin + length, T)
            starts[b, begin:end] = begin
            for query in range(begin, end):
                mask[b, 0, query, begin : query + 1] = 0.0
            if begin > 0:
                targets[b, begin - 1] = IGNORED
            begin += length
    return {"position_ids": torch.from_numpy(np.arange(T) - starts), "attention_mask": torch.from_numpy(mask)}


def mean_loss(logits, targets):
    """Mean over targets that are not ignored, in float64 (the loss inside transformers rounds logits to float32)."""
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)


def run_adamw(model, inputs, targets, packed, **rules):
    return train_adamw(model, lambda: mean_loss(model(input_ids=inputs, **packed).logits, targets), **rules)


def train_adamw(model, loss_of_batch, decay_rank=2, clip=CLIP_NORM, adamw=ADAMW):
    """Trains in place on one batch; the loss before each step and the gradient norm before clipping."""
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() >= decay_rank], "weight_decay": adamw["weight_decay"]},
        {"params": [p for p in parameters if p.dim() < decay_rank], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=adamw["lr"], betas=tuple(adamw["betas"]), eps=adamw["eps"], foreach=False)
    losses, norms = [], []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of_batch()
        loss.backward()
        losses.append(loss.item())
        norms.append(torch.nn.utils.clip_grad_norm_(parameters, clip).item())
        optimizer.step()
    return np.array(losses), np.array(norms)


def compute(name):
    spec = CASES[name]
    model, weights, inputs, targets, packed = build_model(spec)

    logits = model(input_ids=inputs, **packed).logits
    assert logits.dtype == torch.float64
    loss = mean_loss(logits, targets)
    loss.backward()
    # Second opinion on the loss: the library's own, which works in float32.
    with torch.no_grad():
        own = model(input_ids=inputs, labels=targets, shift_labels=targets, **packed).loss.item()
    assert abs(own - loss.item()) < 1e-5 * abs(own), (own, loss.item())
    # And on packed documents: each alone, at position 0 of a batch of its own.
    for b, lengths in enumerate(spec["documents"] or []):
        begin = 0
        for length in lengths:
            with torch.no_grad():
                alone = model(input_ids=inputs[b : b + 1, begin : begin + length]).logits[0] if begin < spec["T"] else None
            if alone is not None:
                assert (alone - logits[b, begin : begin + length]).abs().max() < 1e-12
            begin += length

    tensors = dict(weights)
    for parameter_name, parameter in model.named_parameters():
        tensors["grad." + parameter_name] = parameter.grad.numpy().copy()
    tensors["input_ids"] = inputs.numpy()
    tensors["targets"] = targets.numpy()
    tensors["logits"] = logits.detach().numpy().copy()
    tensors["loss"] = np.array(loss.item())
    if packed:
        tensors["document_start"] = np.arange(spec["T"]) - packed["position_ids"].numpy()
    losses, norms = run_adamw(model, inputs, targets, packed)
    assert losses[0] == loss.item()
    tensors["adamw_losses"] = losses
    tensors["adamw_grad_norms"] = norms
    tensors["grad_norm"] = np.array(norms[0])

    trained = int((targets != IGNORED).sum())
    metadata = {
        "format": "pt",
        "fixture": f"gpt2_{name}",
        "config": json.dumps(spec["config"], sort_keys=True),
        "adamw": json.dumps({**ADAMW, "clip_norm": CLIP_NORM, "steps": STEPS, "decay_min_rank": 2}, sort_keys=True),
        "trained_targets": str(trained),
        "seed": str(spec["seed"]),
        "versions": json.dumps(versions(), sort_keys=True),
    }
    return tensors, metadata


def report_sensitivity(names):
    """Largest relative change of the AdamW losses when one rule is broken: what a test could fail to see."""
    variants = {
        "no decay": {"adamw": {**ADAMW, "weight_decay": 0.0}},
        "decay on rank 1 too": {"decay_rank": 1},
        "no clipping": {"clip": 1e30},
        "beta2 0.999": {"adamw": {**ADAMW, "betas": [0.9, 0.999]}},
        "eps 1e-6": {"adamw": {**ADAMW, "eps": 1e-6}},
    }
    for name in names:
        model, _, inputs, targets, packed = build_model(CASES[name])
        truth, norms = run_adamw(model, inputs, targets, packed)
        print(f"gpt2_{name}: losses {truth[0]:.6f} .. {truth[-1]:.6f}, gradient norms {norms[0]:.4f} .. {norms[-1]:.4f}")
        for label, change in variants.items():
            model, _, inputs, targets, packed = build_model(CASES[name])
            other, _ = run_adamw(model, inputs, targets, packed, **change)
            print(f"  {label:20s} {np.max(np.abs(other - truth) / truth):.2e}")


def run_cases(doc, cases, prefix, compute, floor=1e-12, instead={}):
    """The command of a script: makes or checks the fixtures PREFIX_NAME.safetensors of `cases`. `instead`: a flag with its
    help and what is called with the chosen names in place of that."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="fixtures to make (default: all): " + " ".join(cases))
    parser.add_argument("--check", action="store_true", help="compare with the committed files, write nothing")
    for flag, (text, _) in instead.items():
        parser.add_argument(flag, action="store_true", help=text)
    arguments = parser.parse_args()
    unknown = [name for name in arguments.names if name not in cases]
    if unknown:
        parser.error(f"unknown fixtures {unknown}; there are {list(cases)}")
    names = arguments.names or list(cases)

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    for flag, (_, call) in instead.items():
        if getattr(arguments, flag.removeprefix("--")):
            return call(names)
    good = True
    for name in names:
        path = FOLDER / f"{prefix}_{name}.safetensors"
        tensors, metadata = compute(name)
        if arguments.check:
            good &= check_fixture(path, tensors, metadata, floor=floor)
        else:
            write_fixture(path, tensors, metadata)
    sys.exit(0 if good else 1)


def main():
    run_cases(__doc__, CASES, "gpt2", compute,
              instead={"--sensitivity": ("print how the losses react to broken rules", report_sensitivity)})


if __name__ == "__main__":
    main()
