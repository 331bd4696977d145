#!/usr/bin/env python3
"""Writes rows_<name>.safetensors: what causal models of transformers compute, in float64, of rows that are tokens already.

    python3 make_row_golden.py           write every fixture next to this script
    python3 make_row_golden.py gpt2      write only these
    python3 make_row_golden.py --check   recompute and compare with the committed files (relative 1e-10)

Every row runs alone through model(input_ids=row), so that padding plays no part; labels are given unshifted and
shifted here as ForCausalLMLoss shifts them, which the library's own loss confirms.

Causal models (gpt2; mistral, whose window reaches over rows; llama, whose angles are scaled) on eight rows that
are tokens already, each computed alone: input_ids, labels (unshifted), targets (shifted inside each row) and
document_start, all (1,N) I64, rows back to back; row_lengths; loss, the mean over the targets of all rows;
grad.<parameter>; adamw_losses, adamw_grad_norms. Labels of the first two rows are their tokens; row 3 has a
label that is another token; rows 2 (one token) and 6 train nothing.
"""

import json

import numpy as np
import torch

import make_decoder_golden
import make_golden
from make_decoder_golden import LLAMA3, InDouble, case, rope_family
from make_golden import ADAMW, CLIP_NORM, IGNORED, STEPS, run_cases, train_adamw, versions

# Lengths of rows: one of a single token, which trains nothing, and one as long as the model has positions.
LENGTHS = [5, 16, 1, 9, 2, 12, 7, 3]

CASES = {
    # learned positions, which begin anew in every row
    "gpt2": make_golden.case(401, 2, 3, 24, 71, 16, 1, 16),
    # rotary positions and a window of five before: neither may look into the row before; two query heads share a key head
    "mistral": case(402, "MistralForCausalLM", 1, 16,
                    rope_family(2, 4, 2, 24, 36, 67, 16, rope_theta=1000.0, rms_norm_eps=1e-5, sliding_window=5,
                                tie_word_embeddings=False)),
    # biases on query, key and value, angles that are scaled, tied head
    "llama": case(403, "LlamaForCausalLM", 1, 16,
                  rope_family(2, 3, 1, 21, 34, 61, 16, head_dim=8, rope_theta=100.0, rope_scaling=LLAMA3, rms_norm_eps=1e-5,
                              tie_word_embeddings=True, attention_bias=True)),
}


def build(spec):
    """The model in float64, its parameters by the names of its file, the weights as float32, its config."""
    if "model" not in spec:
        model, weights, _, _, _ = make_golden.build_model(spec)
        return model, dict(model.named_parameters()), weights, spec["config"]
    model, parameters, weights, config, _, _ = make_decoder_golden.build_model(spec)
    return model, parameters, weights, config


def draw_rows(spec, config, rng):
    """(input_ids, labels) of each row; the labels of the first two rows are their tokens, as where none are given."""
    words = np.array([i for i in range(config.vocab_size) if i != config.pad_token_id])
    rows = []
    for number, length in enumerate(LENGTHS):
        ids = rng.choice(words, size=length)
        labels = ids.copy()
        if number >= 2:
            labels[: length // 3] = IGNORED  # a prompt
            labels[rng.random(length) < 0.2] = IGNORED
        if number == 3:
            labels[0], labels[-1] = ids[0], words[3]  # the first is nobody's target; another token than the one there
        if number == 6:
            labels[1:] = IGNORED  # trains nothing
        rows.append((torch.from_numpy(ids)[None], torch.from_numpy(labels)[None]))
    return rows


def shifted(labels):
    out = torch.full_like(labels, IGNORED)
    out[:, :-1] = labels[:, 1:]
    return out


def loss_of_rows(model, rows):
    """Mean over the targets of all rows, in float64."""
    total, count = 0.0, 0
    for ids, labels in rows:
        with InDouble():
            logits = model(input_ids=ids).logits[0]
        total = total + torch.nn.functional.cross_entropy(logits, shifted(labels)[0], ignore_index=IGNORED, reduction="sum")
        count += int((shifted(labels) != IGNORED).sum())
    return total / count


@torch.no_grad()
def second_opinion(model, rows, loss):
    """The library shifts labels itself; its loss is a mean of each row, and of a row without targets none."""
    total, count = 0.0, 0
    for ids, labels in rows:
        n = int((shifted(labels) != IGNORED).sum())
        if n > 0:
            with InDouble():
                total += model(input_ids=ids, labels=labels).loss.item() * n
        count += n
    assert abs(total / count - loss) < 1e-12 * loss, (total / count, loss)


def compute(name):
    spec = CASES[name]
    model, parameters, weights, config = build(spec)
    rows = draw_rows(spec, model.config, np.random.default_rng(spec["seed"] + 1))
    loss = loss_of_rows(model, rows)
    loss.backward()
    second_opinion(model, rows, loss.item())

    tensors = dict(weights)
    for parameter_name, parameter in parameters.items():
        tensors["grad." + parameter_name] = parameter.grad.numpy().copy()
    tensors["row_lengths"] = np.array(LENGTHS)
    tensors["input_ids"] = torch.cat([ids for ids, _ in rows], dim=1).numpy()
    tensors["labels"] = torch.cat([labels for _, labels in rows], dim=1).numpy()
    tensors["targets"] = torch.cat([shifted(labels) for _, labels in rows], dim=1).numpy()
    starts = np.cumsum([0] + LENGTHS[:-1])
    tensors["document_start"] = np.repeat(starts, LENGTHS)[None]
    tensors["loss"] = np.array(loss.item())
    losses, norms = train_adamw(model, lambda: loss_of_rows(model, rows))
    assert losses[0] == loss.item()
    tensors["adamw_losses"] = losses
    tensors["adamw_grad_norms"] = norms
    metadata = {
        "format": "pt",
        "fixture": f"rows_{name}",
        "config": json.dumps(config, sort_keys=True),
        "adamw": json.dumps({**ADAMW, "clip_norm": CLIP_NORM, "steps": STEPS, "decay_min_rank": 2}, sort_keys=True),
        "trained_targets": str(int((tensors["targets"] != IGNORED).sum())),
        "seed": str(spec["seed"]),
        "versions": json.dumps(versions(), sort_keys=True),
    }
    return tensors, metadata


def main():
    run_cases(__doc__, CASES, "rows", compute)


if __name__ == "__main__":
    main()
