#!/usr/bin/env python3
"""Loads an encoder folder written by Snug with transformers and prints what it sees. Needs Python; not part of CI.

    python3 encoder_folder_check.py DIR
    python3 encoder_folder_check.py DIR --text "a fine film" --pair "a poor one"

The class comes from `architectures` of config.json, through the AutoModel of its task. Prints missing, unexpected and
mismatched weights, the labels, and, with --text, the tokens and the logits. Exit code 1 if anything is missing, left
over or of another shape, or a logit is not finite.
"""

import argparse
import json
import pathlib
import sys

import torch
import transformers
from transformers import AutoTokenizer

LOADERS = {
    "ForMaskedLM": "AutoModelForMaskedLM",
    "ForSequenceClassification": "AutoModelForSequenceClassification",
    "ForTokenClassification": "AutoModelForTokenClassification",
    "ForQuestionAnswering": "AutoModelForQuestionAnswering",
    "Model": "AutoModel",
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--text", help="a text to run")
    parser.add_argument("--pair", help="its second part")
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()

    architecture = json.loads((arguments.folder / "config.json").read_text())["architectures"][0]
    loader = next(name for ending, name in LOADERS.items() if architecture.endswith(ending))
    model, seen = getattr(transformers, loader).from_pretrained(arguments.folder, output_loading_info=True)
    model.eval()
    config = model.config
    print(f"{loader} made {type(model).__name__} for {architecture!r}, {sum(p.numel() for p in model.parameters())} parameters")
    good = type(model).__name__ == architecture
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        found = sorted(map(str, seen.get(kind) or ()))
        good &= not found
        print(f"{kind}: {found or 'none'}")
    print(f"id2label {config.id2label}, label2id {config.label2id}, problem_type {config.problem_type!r}")
    if arguments.text:
        tokenizer = AutoTokenizer.from_pretrained(arguments.folder)
        inputs = tokenizer(arguments.text, arguments.pair, return_tensors="pt")
        with torch.no_grad():
            output = model(**inputs)
        values = next(iter(output.values()))
        good &= bool(values.isfinite().all())
        print(f"{type(tokenizer).__name__}: {tokenizer.convert_ids_to_tokens(inputs['input_ids'][0])}")
        print(f"{next(iter(output.keys()))} {tuple(values.shape)}: {values.flatten()[:8].tolist()}")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
