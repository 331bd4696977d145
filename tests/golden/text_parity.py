#!/usr/bin/env python3
"""Ids of `snug tokenizer encode` beside Hugging Face `tokenizers` on mixed, awkward text. Not run in CI.

    python text_parity.py --snug build/bin/snug [--megabytes 6] [--seed 1] [--text FILE] [--tokenizer FILE ...]

The text is made from a seed: words of many scripts, Korean both composed and as jamo, combining marks, emoji
joined and flagged, code, CRLF, tabs, spaces of every kind, long digits, characters that no version of Unicode
has. One whole text and then line by line. The byte-level rules come from the `tokenizer_*.json` beside this
script, with merges learnt on such text without any splitting: then a cut in another place changes ids.
WordPiece, character BPE and Unigram are learnt the same way. --tokenizer adds files, --text a file's text.
Prints a row for each tokenizer and ends with 1 if an id differs.
"""
import argparse
import json
import pathlib
import random
import subprocess
import sys
import tempfile

import tokenizers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

HERE = pathlib.Path(__file__).parent
RANGES = [(0x41, 0x5A), (0x61, 0x7A), (0xC0, 0x17F), (0x370, 0x3FF), (0x400, 0x52F), (0x531, 0x587), (0x5D0, 0x5EA),
          (0x620, 0x64A), (0x904, 0x939), (0xE01, 0xE30), (0x10A0, 0x10FF), (0x1100, 0x11FF), (0x1E00, 0x1FFF),
          (0x3041, 0x3096), (0x30A1, 0x30FA), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0x20000, 0x2A6DF), (0x1D400, 0x1D7FF)]
MARKS = [0x300, 0x301, 0x308, 0x323, 0x327, 0x345, 0x483, 0x5B0, 0x64B, 0x93C, 0x94D, 0xE38, 0x1AB0, 0x20D0, 0x3099, 0xFE20]
SPACES = [" ", "  ", "   ", "\t", "\n", "\r\n", "\r", "\n\n", " \n", "\u00a0", "\u2003", "\u3000", "\u200b", "\u2028", "\u0085", "\v", "\f"]
EMOJI = ["\U0001f600", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f44d\U0001f3fd", "\U0001f1f0\U0001f1f7", "\u2764\ufe0f", "1\ufe0f\u20e3",
         "\U0001f3f4\U000e0067\U000e0062\U000e007f"]
CODE = ["for (int i = 0; i < n; ++i) {", "return x->y[z] != nullptr;", "def f(self, *args):", "    # why", "a_b.c-d/e\\f", "<div class=\"x\">",
        "https://example.org/a?b=c&d=%20#e", "\"\"\"", "=>", "!==", "::", "...", "--", "/* */", "${x}", "0x1F", "1e-5", "3.14", "user@host"]
ENGLISH = "the quick brown fox's jumps over it'll they're I'VE don't We'D lazy dogs HELLO World iPhone eBay McDonald naïve façade".split()


def piece(r):
    kind = r.random()
    if kind < 0.25:
        return r.choice(ENGLISH)
    if kind < 0.60:
        low, high = r.choice(RANGES)
        word = "".join(chr(r.randint(low, high)) for _ in range(r.randint(1, 8)))
        return word if r.random() < 0.7 else "".join(c + chr(r.choice(MARKS)) if r.random() < 0.4 else c for c in word)
    if kind < 0.68:
        return str(r.randrange(10 ** r.randint(1, 30)))
    if kind < 0.75:
        return "".join(r.choice("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~¡¿—–“”‘’…、。「」٪€") for _ in range(r.randint(1, 6)))
    if kind < 0.82:
        return r.choice(EMOJI)
    if kind < 0.92:
        return r.choice(CODE)
    if kind < 0.95:
        return "".join(chr(r.choice([0x660, 0x966, 0x2160, 0xBD, 0xB2, 0x2460, 0xFF10, 0x1D7CE]) + r.randrange(9)) for _ in range(r.randint(1, 4)))
    if kind < 0.97:
        return chr(r.choice([1, 7, 0x1B, 0x7F, 0x9F, 0xAD, 0x200D, 0x2060, 0xFEFF, 0xFFFD, 0xFFFE, 0xE000, 0x10FFFF]))
    while True:
        c = r.randrange(0x110000)
        if not 0xD800 <= c < 0xE000 and c != 0:
            return chr(c)


def make_text(megabytes, seed):
    r, parts, size = random.Random(seed), [], 0
    while size < megabytes * 1e6:
        p = piece(r) + (r.choice(SPACES) if r.random() < 0.3 else " " if r.random() < 0.75 else "")
        parts.append(p)
        size += len(p.encode())
    return "".join(parts)


def forms(text, folder):
    """(name, path) of each tokenizer to compare."""
    sample = text[:600000]
    short = [sample[i:i + 24] for i in range(0, len(sample), 24)]  # no cut but at every 24th character
    plain = Tokenizer(models.BPE())
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    plain.train_from_iterator(short, trainers.BpeTrainer(
        vocab_size=6000, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    learnt = json.loads(plain.to_str())["model"]
    for path in sorted(HERE.glob("tokenizer_*.json")):
        rules = json.loads(path.read_text())
        rules["model"].update(vocab=learnt["vocab"], merges=learnt["merges"])
        for token in rules["added_tokens"]:
            token["id"] = rules["model"]["vocab"].setdefault(token["content"], len(rules["model"]["vocab"]))
        rules["post_processor"] = None
        out = folder / path.name
        out.write_text(json.dumps(rules))
        yield path.stem[len("tokenizer_"):], out
    for name, model, trainer, normalizer, splitter, decoder in (
        ("wordpiece", models.WordPiece(unk_token="[UNK]"),
         trainers.WordPieceTrainer(vocab_size=8000, special_tokens=["[UNK]"], show_progress=False),
         normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()),
        ("character-bpe", models.BPE(unk_token="<unk>"),
         trainers.BpeTrainer(vocab_size=8000, special_tokens=["<unk>"], show_progress=False, limit_alphabet=3000),
         normalizers.NFKC(), pre_tokenizers.Metaspace(), decoders.Metaspace()),
        ("unigram", models.Unigram(),
         trainers.UnigramTrainer(vocab_size=40000, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False),
         normalizers.NFKC(), pre_tokenizers.Metaspace(), decoders.Metaspace()),
    ):
        t = Tokenizer(model)
        t.normalizer, t.pre_tokenizer, t.decoder = normalizer, splitter, decoder
        t.train_from_iterator(sample.split("\n"), trainer)
        out = folder / f"{name}.json"
        t.save(str(out))
        yield name, out


def encode(snug, path, text, *flags):
    done = subprocess.run([snug, "tokenizer", "encode", "--tokenizer", str(path), *flags], input=text.encode(), stdout=subprocess.PIPE, check=True)
    return [[int(i) for i in line.split()] for line in done.stdout.decode().split("\n")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--snug", default="build/bin/snug")
    parser.add_argument("--megabytes", type=float, default=6)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--text", help="instead of made text")
    parser.add_argument("--tokenizer", nargs="*", default=[], help="further files to compare")
    args = parser.parse_args()
    text = pathlib.Path(args.text).read_text(newline="") if args.text else make_text(args.megabytes, args.seed)
    lines, worst = text.split("\n"), 0
    print(f"tokenizers {tokenizers.__version__}, {len(text.encode()) / 1e6:.1f} MB, seed {args.seed}\n")
    print("| tokenizer | ids | ids that differ, whole | lines that differ |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        for kind, path in [*forms(text, pathlib.Path(name)), *((pathlib.Path(p).parent.name, p) for p in args.tokenizer)]:
            theirs = Tokenizer.from_file(str(path))
            want = theirs.encode(text, add_special_tokens=False).ids
            got = sum(encode(args.snug, path, text), [])
            first = next((i for i, (a, b) in enumerate(zip(want, got)) if a != b), None)
            differ = sum(a != b for a, b in zip(want, got)) + abs(len(want) - len(got))
            batch = [e.ids for e in theirs.encode_batch_fast(lines, add_special_tokens=False)]
            bad = sum(a != b for a, b in zip(batch, encode(args.snug, path, text, "--lines")))
            print(f"| {kind} | {len(want)} | {differ} | {bad} |", flush=True)
            if differ:
                print(f"  first at {first}: {want[max(0, first - 3):first + 5]} and {got[max(0, first - 3):first + 5]}")
            worst = max(worst, differ, bad)
    sys.exit(1 if worst else 0)


if __name__ == "__main__":
    main()
