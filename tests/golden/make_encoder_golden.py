#!/usr/bin/env python3
"""Writes encoder_<name>.safetensors: what the encoders of transformers with their heads compute, in float64, on tiny random models.

    python3 make_encoder_golden.py           write every fixture next to this script
    python3 make_encoder_golden.py a d       write only these
    python3 make_encoder_golden.py --check   recompute and compare with the committed files (relative 1e-10)

Parameters and float targets are drawn in float64, rounded to float32 and only then used in float64. Every row runs
alone, so that no padding exists; a second run on the padded batch, with the mask and the loss of transformers itself,
must agree.

    name  class                                L H C F V P       row lengths  what it is for
    a     BertForMaskedLM                      2 2 24 40 97 16   1 7 12 3 9   tied decoder with a bias, odd V, token types, a row of one token
    b     BertForSequenceClassification        2 3 27 45 53 12   12 5 9 3 7   3 classes, pairs, head width 9, erf gelu, the longest row takes the last position
    c     BertForSequenceClassification        2 2 16 32 41 10   3 10 1 6     regression, K = 1, gelu_new, no token types given: type 0 everywhere
    d     BertForSequenceClassification        1 2 24 32 59 14   8 2 11 5     multi-label, K = 4, epsilon 1e-3
    e     BertForTokenClassification           3 4 20 28 61 16   6 1 11 4     5 labels, some ignored, the last row not trained at all
    f     RobertaForMaskedLM                   2 2 24 36 101 16  1 7 14 3 9   positions begin at 2, the longest row takes the last; padding id 1
    g     RobertaForSequenceClassification     2 3 24 32 67 18   5 13 2 8     head of two layers on the first token, tanh between; relu in the blocks
    h     DistilBertForMaskedLM                2 2 24 40 83 14   1 12 5 8     no token types; epsilon 1e-12 is in the code of transformers, not in the config
    i     DistilBertForSequenceClassification  2 4 20 30 47 11   4 9 1 6 7    3 classes, relu between pre_classifier and classifier
    j     BertForSequenceClassification        1 1 13 37 31 9    7 3 9        one head of width 13, everything odd, relu

Tensors: every parameter under the name that save_pretrained writes (F32; a tied decoder has none of its own). N
rows of tokens back to back: input_ids (N) I64, row_lengths (R) I64, token_type_ids (N) I64 where given.
labels: (N) I64 per token, -100 ignored, not shifted; (R) I64 class ids; (R,K) F64 float targets (exact in F32).
logits (N,V), (N,K) or (R,K); hidden (N,C), the last hidden state; loss [], the mean over the trained targets of
all rows together, not of the means of rows (float targets: over all R*K elements); grad.<parameter>, grad_norm,
adamw_losses, adamw_grad_norms as make_golden.py says. All F64. Metadata: config (config.json as transformers writes it,
architectures included, without transformers_version), task (masked_lm, sequence_classification,
token_classification; problem_type is in config), adamw, trained_targets, seed. Every row ran alone; the
script also runs them as one padded and masked batch with the loss of transformers: equal to 1e-12. No row holds the
padding id, whose word (and in RoBERTa whose position) gets a gradient from a tied decoder only. The gradients of the
key biases are zero in exact arithmetic and rounding noise here (softmax sees no shift): compare them with an absolute
floor. RoBERTa's masked-LM head applies erf gelu whatever hidden_act says, DistilBERT's the config's activation,
BERT's hidden_act.
"""

import json
import pathlib
import tempfile

import numpy as np
import torch
import transformers
from safetensors import safe_open

from make_golden import ADAMW, CLIP_NORM, IGNORED, STEPS, run_cases, train_adamw, versions

# A gradient that is zero in exact arithmetic (the key biases: softmax does not see a shift) is rounding noise of 1e-17.
ZERO_FLOOR = 1e-6

MASKED_LM, SEQUENCE, TOKEN = "masked_lm", "sequence_classification", "token_classification"


def bert(layers, heads, width, hidden, vocab, positions, **more):
    return {"num_hidden_layers": layers, "num_attention_heads": heads, "hidden_size": width, "intermediate_size": hidden,
            "vocab_size": vocab, "max_position_embeddings": positions, "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0, "classifier_dropout": 0.0, **more}


def distilbert(layers, heads, width, hidden, vocab, positions, **more):
    return {"n_layers": layers, "n_heads": heads, "dim": width, "hidden_dim": hidden, "vocab_size": vocab,
            "max_position_embeddings": positions, "dropout": 0.0, "attention_dropout": 0.0, "seq_classif_dropout": 0.0,
            "qa_dropout": 0.0, **more}


def roberta(*sizes, **more):
    return bert(*sizes, type_vocab_size=1, layer_norm_eps=1e-5, **more)


def case(seed, model, task, lengths, config, types=False, trained=1.0, **more):
    problem = {"problem_type": more["problem"]} if "problem" in more else {}
    labels = {"num_labels": more["labels"]} if "labels" in more else {}
    return {"seed": seed, "model": model, "task": task, "lengths": lengths, "types": types, "trained": trained,
            "config": {**config, **problem, **labels}}


SINGLE, MULTI, REGRESSION = "single_label_classification", "multi_label_classification", "regression"

CASES = {
    # tied decoder with a bias, odd vocabulary, token types, a row of one token
    "a": case(201, "BertForMaskedLM", MASKED_LM, [1, 7, 12, 3, 9], bert(2, 2, 24, 40, 97, 16), types=True, trained=0.25),
    # pairs; three heads of width 9; the longest row takes the last position
    "b": case(202, "BertForSequenceClassification", SEQUENCE, [12, 5, 9, 3, 7], bert(2, 3, 27, 45, 53, 12), types=True,
              labels=3, problem=SINGLE),
    # one float target a row; the tanh form of gelu; token types exist but none are given
    "c": case(213, "BertForSequenceClassification", SEQUENCE, [3, 10, 1, 6],
              bert(2, 2, 16, 32, 41, 10, hidden_act="gelu_new", layer_norm_eps=1e-5), labels=1, problem=REGRESSION),
    # four yes-or-no targets a row; an epsilon large enough to matter
    "d": case(204, "BertForSequenceClassification", SEQUENCE, [8, 2, 11, 5], bert(1, 2, 24, 32, 59, 14, layer_norm_eps=1e-3),
              types=True, labels=4, problem=MULTI),
    # a label a token, some ignored, the last row not trained at all
    "e": case(205, "BertForTokenClassification", TOKEN, [6, 1, 11, 4], bert(3, 4, 20, 28, 61, 16), types=True, trained=0.7,
              labels=5),
    # positions begin at 2 and the longest row takes the last one; the word of id 1 is padding
    "f": case(206, "RobertaForMaskedLM", MASKED_LM, [1, 7, 14, 3, 9], roberta(2, 2, 24, 36, 101, 16), trained=0.25),
    # two-layer head on <s>; relu in the blocks
    "g": case(207, "RobertaForSequenceClassification", SEQUENCE, [5, 13, 2, 8], roberta(2, 3, 24, 32, 67, 18, hidden_act="relu"),
              labels=2, problem=SINGLE),
    # no token types; the epsilon is in the code, not in the config
    "h": case(208, "DistilBertForMaskedLM", MASKED_LM, [1, 12, 5, 8], distilbert(2, 2, 24, 40, 83, 14), trained=0.3),
    # head with a relu between two layers
    "i": case(209, "DistilBertForSequenceClassification", SEQUENCE, [4, 9, 1, 6, 7], distilbert(2, 4, 20, 30, 47, 11),
              labels=3, problem=SINGLE),
    # one head of width 13, odd sizes everywhere, relu
    "j": case(220, "BertForSequenceClassification", SEQUENCE, [7, 3, 9], bert(1, 1, 13, 37, 31, 9, hidden_act="relu"),
              types=True, labels=2, problem=SINGLE),
}


def draw_parameter(name, shape, rng):
    """Random numbers large enough that no term of the model is negligible."""
    noise = rng.standard_normal(shape)
    if "layernorm" in name.lower().replace("_", ""):
        return 1.0 + 0.2 * noise if name.endswith("weight") else 0.2 * noise
    if name.endswith("bias"):
        return 0.15 * noise
    return noise * (0.2 if "position" in name or "token_type" in name else 0.3)


def build_model(spec):
    """The model in float64, its tensors as save_pretrained writes them, and the config.json beside them."""
    rng = np.random.default_rng(spec["seed"])
    family = getattr(transformers, spec["model"])
    config = family.config_class(**spec["config"], attn_implementation="eager")
    model = family(config)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        with safe_open(pathlib.Path(folder) / "model.safetensors", framework="numpy") as file:
            names = sorted(file.keys())
        written = json.loads((pathlib.Path(folder) / "config.json").read_text())
    del written["transformers_version"]  # held by `versions`
    parameters = {name: model.get_parameter(name) for name in names}
    assert {id(p) for p in parameters.values()} == {id(p) for p in model.parameters()}
    assert len(parameters) == len(list(model.parameters()))
    weights = {}
    with torch.no_grad():
        for name, parameter in parameters.items():
            weights[name] = draw_parameter(name, tuple(parameter.shape), rng).astype(np.float32)
            parameter.copy_(torch.from_numpy(weights[name]))
    model.double()
    model.train()  # dropout is zero, so this changes nothing but is how training runs
    return model, {name: model.get_parameter(name) for name in names}, weights, written, rng


def draw_rows(spec, config, rng):
    """Tokens (no padding id among them, the same first one in every row), token types of pairs, labels."""
    rows = []
    words = np.array([i for i in range(config.vocab_size) if i != config.pad_token_id])
    for length in spec["lengths"]:
        ids = rng.choice(words, size=length)
        ids[0] = config.bos_token_id if config.model_type == "roberta" else 3
        row = {"input_ids": torch.from_numpy(ids)[None]}
        if spec["types"]:
            row["token_type_ids"] = (torch.arange(length) > length // 2).long()[None]
        rows.append(row)
    total, count = sum(spec["lengths"]), len(spec["lengths"])
    if spec["task"] != SEQUENCE:
        classes = config.vocab_size if spec["task"] == MASKED_LM else config.num_labels
        labels = rng.integers(0, classes, size=total)
        labels[rng.random(total) >= spec["trained"]] = IGNORED
        if spec["task"] == TOKEN:
            labels[total - spec["lengths"][-1] :] = IGNORED
    elif config.problem_type == "single_label_classification":
        labels = rng.permutation(np.arange(count) % config.num_labels)
    elif config.problem_type == "regression":
        labels = rng.standard_normal((count, 1)).astype(np.float32).astype(np.float64)
    else:
        labels = (rng.random((count, config.num_labels)) < 0.5).astype(np.float64)
    return rows, torch.from_numpy(labels)


def forward(model, rows, task):
    """Logits of all rows, each computed alone: (N, classes) or (R, classes)."""
    logits = [model(**row).logits for row in rows]
    return torch.cat([x[0] for x in logits] if task != SEQUENCE else logits)


def mean_loss(logits, labels):
    """Mean over all targets of all rows that are not ignored; what the labels are says which loss."""
    if labels.dtype == torch.int64:
        return torch.nn.functional.cross_entropy(logits, labels, ignore_index=IGNORED)
    if logits.shape[1] == 1:
        return torch.nn.functional.mse_loss(logits, labels)
    return torch.nn.functional.binary_cross_entropy_with_logits(logits, labels)


def second_opinion(model, spec, rows, labels, logits, loss):
    """The rows as one padded batch, masked, with the loss of the library."""
    def pad(pieces, value):
        return torch.nn.utils.rnn.pad_sequence(pieces, batch_first=True, padding_value=value)

    batch = {key: pad([row[key][0] for row in rows], model.config.pad_token_id if key == "input_ids" else 0) for key in rows[0]}
    batch["attention_mask"] = pad([torch.ones(n, dtype=torch.int64) for n in spec["lengths"]], 0)
    real = batch["attention_mask"].bool()
    batch["labels"] = labels if spec["task"] == SEQUENCE else pad(list(labels.split(spec["lengths"])), IGNORED)
    with torch.no_grad():
        own = model(**batch)
    padded = own.logits if spec["task"] == SEQUENCE else own.logits[real]
    assert (padded - logits).abs().max() < 1e-12
    assert own.loss.dtype == torch.float64 and abs(own.loss - loss) < 1e-12 * abs(loss), (own.loss, loss)


def compute(name):
    spec = CASES[name]
    model, parameters, weights, config, rng = build_model(spec)
    rows, labels = draw_rows(spec, model.config, rng)
    assert config["architectures"] == [spec["model"]]

    logits = forward(model, rows, spec["task"])
    assert logits.dtype == torch.float64
    loss = mean_loss(logits, labels)
    loss.backward()
    second_opinion(model, spec, rows, labels, logits, loss)

    tensors = dict(weights)
    for parameter_name, parameter in parameters.items():
        tensors["grad." + parameter_name] = parameter.grad.numpy().copy()
    for key in rows[0]:
        tensors[key] = torch.cat([row[key][0] for row in rows]).numpy()
    tensors["row_lengths"] = np.array(spec["lengths"], dtype=np.int64)
    tensors["labels"] = labels.numpy()
    tensors["logits"] = logits.detach().numpy().copy()
    with torch.no_grad():
        tensors["hidden"] = torch.cat([model.base_model(**row).last_hidden_state[0] for row in rows]).numpy()
    tensors["loss"] = np.array(loss.item())
    losses, norms = train_adamw(model, lambda: mean_loss(forward(model, rows, spec["task"]), labels))
    assert losses[0] == loss.item()
    tensors["adamw_losses"] = losses
    tensors["adamw_grad_norms"] = norms
    tensors["grad_norm"] = np.array(norms[0])

    metadata = {
        "format": "pt",
        "fixture": f"encoder_{name}",
        "task": spec["task"],
        "config": json.dumps(config, sort_keys=True),
        "adamw": json.dumps({**ADAMW, "clip_norm": CLIP_NORM, "steps": STEPS, "decay_min_rank": 2}, sort_keys=True),
        "trained_targets": str(int((labels != IGNORED).sum())),
        "seed": str(spec["seed"]),
        "versions": json.dumps(versions(), sort_keys=True),
    }
    return tensors, metadata


def main():
    run_cases(__doc__, CASES, "encoder", compute, floor=ZERO_FLOOR)


if __name__ == "__main__":
    main()
