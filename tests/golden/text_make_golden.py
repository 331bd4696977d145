#!/usr/bin/env python3
"""Makes the tokenizer fixtures with Hugging Face `tokenizers`, the truth for tests/engine/text.

    python text_make_golden.py        (writes beside itself; needs: pip install tokenizers)

text_corpus.txt          what the tokenizers below are trained on
tokenizer_gpt2.json      GPT-2 form, trained on the whole corpus as one document
tokenizer_lines.json     the same, trained from the file, that is line by line, min_frequency 2
tokenizer_llama3.json    Llama 3 pattern, ignore_merges, template, added tokens of every kind
tokenizer_qwen.json      Qwen pattern, NFC
tokenizer_o200k.json     o200k pattern
tokenizer_prefix.json    Digits and ByteLevel with add_prefix_space
text_golden.json         texts and their ids under each of them; sanitised bytes from Python
"""
import json
import pathlib
import random
import unicodedata

from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers,
                        pre_tokenizers, processors, trainers)

HERE = pathlib.Path(__file__).parent

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
          r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
TAIL = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
O200K = "|".join([
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+" + TAIL,
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*" + TAIL,
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])

CORPUS = """The little boat went out at dawn, and the little boat came home at night.
We'll see what the sea says; it's said that the sea doesn't say much. They've heard it, I'm told.
나는 아침에 작은 배를 타고 바다로 나갔다. 바다는 넓고 바다는 깊다. 서울에서 부산까지 기차로 간다.
わたしは朝、小さな船で海へ出た。海は広く、海は深い。カタカナとひらがな。
我早上坐小船出海。大海很宽,大海很深。北京和上海都是大城市。
Café, naïve, résumé, Ångström, façade; e\u0301te\u0301, n\u0303, o\u0308 with combining marks.
Мы вышли в море на маленькой лодке. Море широкое, море глубокое.
שלום עולם, مرحبا بالعالم, हिन्दी में नमस्ते, สวัสดีชาวโลก
😀😀👍🏽 👨‍👩‍👧‍👦 🏳️‍🌈 🇰🇷🇯🇵 ✨
int main(void) {\r
\tfor (int i = 0; i < 100; ++i) {\r
\t\tprintf("%d\\n", values[i]);\r
\t}\r
\treturn 0;\r
}\r
def total(values):
    result = 0
    for value in values:
        result += value
    return result

Numbers: 1 12 123 1234 12345 1234567890 3.14159 2026-01-31 ½ Ⅷ ² ٣٤٥
No-break:\u00a0here\u00a0and\u00a0there; thin\u2009space; ideographic\u3000space; tabs\t\tand\ttabs.
""" * 2 + "   leading   and trailing   \n\n\n  \t \n end"

TEXTS = [
    "", " ", "  ", "\n", "a", "The little boat", " The little boat ", "we'll WE'LL it's IT'S 's'S",
    "나는 서울에서 바다로", "한국어와 English가 섞인 문장", "わたしは海へ", "大海很深,大海很宽。",
    "café cafe\u0301 Å A\u030a \u212b", "\u0301\u0301 marks first", "ñn\u0303 ö o\u0308",
    "😀👍🏽👨‍👩‍👧‍👦🏳️‍🌈🇰🇷", "x😀y 😀 z", "line\r\nline\r\n\r\nline\n\n\nline\rline",
    "a\u00a0b \u00a0c\u00a0\u00a0 d", "tab\tto\t\ttab\t \t x", "1 22 333 4444 55555 12345678901234567890",
    "3.14159e-10, 1,000,000", "½ ² Ⅷ ٣٤٥ ①②③", "for (int i = 0; i < n; ++i) {\n\t\tx[i] += 1;\n\t}",
    "   leading and trailing   ", "\n\n  \n x", "\u3000全角\u3000space\u2009thin\u2028line\u0085next",
    "\u200b\u200d\ufeff zero width", "don’t can’t ‘quotes’ “double”", "'", "''s'", " '", "'re're 've'll'd",
    "\u017f '\u017f long s", "HTTPServer XMLHttpRequest camelCase snake_case SCREAMING_CASE",
    "https://example.org/a/b?c=d&e=f#g //// \r\n/", "a" * 70, "ab" * 60, " " * 77 + "x", "!" * 90,
    "한" * 50, "\U0001d49c\U00020000 beyond the plane", "<|endoftext|>", "a<|endoftext|>b",
    "x <|endoftext|> y<|endo<|endoftext|><|end", "<mask> a <mask>b  <mask>", "word sword words word.",
    "a  LEFT  b", "a  RIGHT  b", "BOTH xBOTH BOTHx  BOTH  ", "word\u200d \u00e9word wordé _word -word-",
    "Ångström A\u030angstro\u0308m", "\u1100\u1161\u11a8 jamo", "\u0000\u0001\u007f control",
]


def random_text(rng, pieces):
    return "".join(rng.choice(pieces) for _ in range(rng.randrange(1, 40)))


def level(prefix=False, regex=True):
    return pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=regex)


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), behavior, invert=invert), level(False, False)])


def train(pre_tokenizer, vocab_size, normalizer=None, ignore_merges=False, lines=None, least=0):
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    if normalizer:
        tokenizer.normalizer = normalizer
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, min_frequency=least, special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    if lines:
        tokenizer.train([str(lines)], trainer)
    else:
        tokenizer.train_from_iterator([CORPUS], trainer)
    return tokenizer


def main():
    corpus = HERE / "text_corpus.txt"
    corpus.write_bytes(CORPUS.encode())
    made = {
        "gpt2": train(level(), 700),
        "lines": train(level(), 600, lines=corpus, least=2),
        "llama3": train(split(LLAMA3), 420, ignore_merges=True),
        "qwen": train(split(QWEN), 420, normalizer=normalizers.NFC()),
        "o200k": train(split(O200K, "removed", True), 420),
        "prefix": train(pre_tokenizers.Sequence([pre_tokenizers.Digits(True), level(True)]), 420),
    }
    made["llama3"].add_special_tokens([
        AddedToken("<|end|>"), AddedToken("<|endo"), AddedToken("<mask>", lstrip=True)])
    for name in ("llama3", "qwen"):
        made[name].add_tokens([
            AddedToken("word", single_word=True), AddedToken("LEFT", lstrip=True),
            AddedToken("RIGHT", rstrip=True), AddedToken("Ångström"),
            AddedToken("BOTH", lstrip=True, rstrip=True, single_word=True, normalized=False)])
    made["llama3"].post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)])

    rng = random.Random(20)
    pieces = [t for t in TEXTS if t] + list(" \t\n\r'stlvremd1Aé中한😀") + ["\u00a0", "\r\n", "  "]
    texts = TEXTS + [random_text(rng, [p for p in pieces if len(p) < 30]) for _ in range(8)]
    assert all(unicodedata.category(c) != "Cn" for t in texts for c in t)
    golden = {"cases": [], "sanitised": []}
    for text in texts:
        ids = {n: t.encode(text, add_special_tokens=False).ids for n, t in made.items()
               if n != "lines"}
        golden["cases"].append({"text": text, "ids": ids})
    bad = [b"\xff", b"a\xc3", b"\xe2\x82", b"\xe2\x82x", b"\xf0\x9f\x98", b"\xed\xa0\x80", b"\xc0\x80",
           b"\xf4\x90\x80\x80", b"\xf8\x88\x80\x80\x80", b"\x80\xbf", b"ok\xe0\x80\x80ok", b"\xf0\x9fA"]
    bad += [bytes(rng.choice([0x41, 0x80, 0xa0, 0xbf, 0xc3, 0xe0, 0xe2, 0xed, 0xf0, 0xf4, 0xff])
                  for _ in range(12)) for _ in range(60)]
    for data in bad:
        golden["sanitised"].append([data.hex(), data.decode("utf-8", errors="replace")])
    (HERE / "text_golden.json").write_text(
        json.dumps(golden, ensure_ascii=False, separators=(",", ":")).replace('},{"t', '},\n{"t') + "\n")
    for name, tokenizer in made.items():
        tokenizer.save(str(HERE / f"tokenizer_{name}.json"), pretty=False)


if __name__ == "__main__":
    main()
