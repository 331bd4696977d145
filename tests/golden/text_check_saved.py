#!/usr/bin/env python3
"""Does transformers load what Tokenizer::save wrote, and give the same ids? Not run in CI.

    snug tokenizer encode ... > ids.txt
    python text_check_saved.py FOLDER TEXT IDS

FOLDER: written by Tokenizer::save; TEXT: a UTF-8 file; IDS: the ids Snug gives for it, as decimal
numbers separated by white space. Checks AutoTokenizer on the folder, tokenizer.json alone, and the
pair vocab.json + merges.txt where the split pattern is that of GPT-2.
"""
import json
import pathlib
import sys

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer


def main():
    folder, text_path, ids_path = map(pathlib.Path, sys.argv[1:4])
    text = text_path.read_bytes().decode()
    expected = [int(i) for i in ids_path.read_text().split()]
    auto = AutoTokenizer.from_pretrained(folder)
    plain = Tokenizer.from_file(str(folder / "tokenizer.json"))
    found = {
        "AutoTokenizer": auto.encode(text, add_special_tokens=False),
        "tokenizer.json": plain.encode(text, add_special_tokens=False).ids,
    }
    description = json.loads((folder / "tokenizer.json").read_text())
    if description["pre_tokenizer"]["type"] == "ByteLevel":
        pair = Tokenizer(models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt")))
        pair.pre_tokenizer = pre_tokenizers.ByteLevel(
            add_prefix_space=description["pre_tokenizer"]["add_prefix_space"])
        pair.add_special_tokens([t["content"] for t in description["added_tokens"]])
        found["vocab.json + merges.txt"] = pair.encode(text).ids
    wrong = 0
    for name, ids in found.items():
        same = ids == expected
        wrong += not same
        print(f"{name}: {len(ids)} ids, {'equal' if same else 'DIFFERENT'}")
    decoded = auto.decode(expected, clean_up_tokenization_spaces=False)
    same = decoded == text or description["normalizer"] is not None  # NFC and the like change text
    wrong += not same
    print(f"decoded text: {'equal' if same else 'DIFFERENT'}; eos {auto.eos_token!r}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
