#!/usr/bin/env python3
"""Makes text_components.json with Hugging Face `tokenizers`: what single parts of tokenizer.json do to
texts, and ids under small WordPiece, Unigram, character BPE and WordLevel tokenizers.

    python text_make_components.py        (writes beside itself; needs: pip install tokenizers)
"""
import base64
import json
import pathlib
import random
import struct

from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers,
                        processors, trainers)

from text_make_golden import CORPUS, TEXTS

HERE = pathlib.Path(__file__).parent

NORMALIZERS = [
    {"type": "NFC"}, {"type": "NFD"}, {"type": "NFKC"}, {"type": "NFKD"}, {"type": "Lowercase"},
    {"type": "StripAccents"}, {"type": "Nmt"},
    {"type": "Strip", "strip_left": True, "strip_right": False},
    {"type": "Strip", "strip_left": False, "strip_right": True},
    {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True,
     "strip_accents": None, "lowercase": True},
    {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True,
     "strip_accents": None, "lowercase": False},
    {"type": "BertNormalizer", "clean_text": False, "handle_chinese_chars": False,
     "strip_accents": True, "lowercase": False},
    {"type": "Prepend", "prepend": "\u2581"},
    {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
    {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "_"},
    {"type": "Replace", "pattern": {"Regex": r"\s*"}, "content": "."},
    {"type": "Sequence", "normalizers": [{"type": "NFD"}, {"type": "StripAccents"},
                                         {"type": "Lowercase"}]},
]
PRE_TOKENIZERS = [
    {"type": "Whitespace"}, {"type": "WhitespaceSplit"}, {"type": "BertPreTokenizer"},
    {"type": "Digits", "individual_digits": True}, {"type": "Digits", "individual_digits": False},
    {"type": "CharDelimiterSplit", "delimiter": "e"}, {"type": "FixedLength", "length": 3},
] + [{"type": "Punctuation", "behavior": b} for b in (
    "Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous")] + [
    {"type": "Split", "pattern": {"Regex": r"\p{Lu}|\d+"}, "behavior": b, "invert": i}
    for b in ("Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous")
    for i in (False, True)] + [
    {"type": "Split", "pattern": {"String": "l"}, "behavior": "MergedWithNext", "invert": False},
] + [{"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": p, "split": s}
     for p in ("always", "first", "never") for s in (True, False)] + [
    {"type": "Sequence", "pretokenizers": [
        {"type": "WhitespaceSplit"},
        {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": True}]},
    {"type": "Sequence", "pretokenizers": [
        {"type": "Punctuation", "behavior": "Isolated"}, {"type": "Digits", "individual_digits": True},
        {"type": "Metaspace", "replacement": "_", "prepend_scheme": "always", "split": True}]},
]
DECODERS = [
    {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
    {"type": "WordPiece", "prefix": "##", "cleanup": True},
    {"type": "WordPiece", "prefix": "##", "cleanup": False},
    {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True},
    {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "never", "split": True},
    {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "BPEDecoder", "suffix": "</w>"},
    {"type": "Strip", "content": "a", "start": 1, "stop": 0},
    {"type": "Strip", "content": "\u2581", "start": 0, "stop": 1},
    {"type": "Replace", "pattern": {"String": "a"}, "content": "--"},
    {"type": "Replace", "pattern": {"Regex": "[ab]+"}, "content": ""},
    {"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
        {"type": "ByteFallback"}, {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
    None,
]
PIECES = ["a", "aab", "##b", "##ing", "\u2581the", "\u2581", "\u2581\u2581", "<0xEC>", "<0x95>", "<0x88>",
          "<0xFF>", "<0x0A>", ".", ",", "n't", "do", "not", "'", "'s", "w</w>", "x", "\u0120the", "\u010a",
          "\uc548", "?"]


def with_parts(**parts):
    base = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [],
            "normalizer": None, "pre_tokenizer": None, "post_processor": None, "decoder": None,
            "model": {"type": "WordLevel", "vocab": {"u": 0}, "unk_token": "u"}}
    return Tokenizer.from_str(json.dumps({**base, **parts}))


def charsmap(table):
    """A double array (Darts-clone units) with the replacements, as SentencePiece writes it."""
    texts, offsets = b"", {}
    for value in table.values():
        offsets.setdefault(value, len(texts))
        if offsets[value] == len(texts):
            texts += value.encode() + b"\0"
    trie = {}
    for key, value in table.items():
        node = trie
        for byte in key.encode():
            node = node.setdefault(byte, {})
        node[0] = offsets[value]
    units, used = [0] * 4096, {0}

    def place(index, node):
        children = sorted(node)
        base = 256
        while any(base ^ c in used for c in children):
            base += 1
        for c in children:
            used.add(base ^ c)
        offset = index ^ base
        assert offset < 1 << 21
        units[index] |= offset << 10 | ((0 in node) << 8)
        for c in children:
            child = base ^ c
            if c == 0:
                units[child] = 1 << 31 | node[0]
            else:
                units[child] = c
                place(child, node[c])

    place(0, trie)
    blob = b"".join(struct.pack("<I", u) for u in units)
    return base64.b64encode(struct.pack("<I", len(blob)) + blob + texts).decode()


def tokenizers_to_try():
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]

    def trained(tokenizer, trainer):
        tokenizer.train_from_iterator([CORPUS], trainer)
        return tokenizer

    for name, normal in (("bert", normalizers.BertNormalizer()),
                         ("bert_cased", normalizers.BertNormalizer(True, True, False, False))):
        t = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=40))
        t.normalizer = normal
        t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        t.decoder = decoders.WordPiece()
        t = trained(t, trainers.WordPieceTrainer(vocab_size=360, special_tokens=specials,
                                                 limit_alphabet=100, show_progress=False))
        t.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
        yield name, t
    unigram = dict(vocab_size=260, show_progress=False, unk_token="<unk>",
                   special_tokens=["<unk>", "<s>", "</s>"])
    t = Tokenizer(models.Unigram())
    t.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    t.pre_tokenizer = pre_tokenizers.Metaspace()
    t.decoder = decoders.Metaspace()
    t = trained(t, trainers.UnigramTrainer(**unigram))
    t.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> $B:1 </s>:1",
        special_tokens=[("<s>", 1), ("</s>", 2)])
    yield "unigram", t
    # With byte fallback, and the text as one word.
    described = json.loads(t.to_str())
    model = described["model"]
    model["vocab"] += [["<0x%02X>" % b, -20.0 - b / 1000] for b in range(256)]
    model["byte_fallback"] = True
    described["pre_tokenizer"]["split"] = False
    described["pre_tokenizer"]["prepend_scheme"] = "first"
    described["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": charsmap(
        {"\uff21": "A", "\ufb01": "fi", "\u3000": " ", "e\u0301": "\u00e9", "\t": " ", "\u2460": "1", "\u00ad": ""})}
    described["decoder"] = {"type": "Sequence", "decoders": [
        {"type": "ByteFallback"}, described["decoder"]]}
    yield "unigram_bytes", Tokenizer.from_str(json.dumps(described))
    # Llama 2 form.
    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    t.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    t.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(),
                                   decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    t = Tokenizer.from_str(trained_lines(t))
    described = json.loads(t.to_str())
    model = described["model"]
    model["byte_fallback"] = True
    for b in range(256):
        model["vocab"]["<0x%02X>" % b] = len(model["vocab"])
    described["added_tokens"] += [
        {"id": len(model["vocab"]), "content": "Word", "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False, "special": False}]
    yield "llama2", Tokenizer.from_str(json.dumps(described))
    # CLIP form, without byte fallback.
    t = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>", fuse_unk=False))
    t.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    t.pre_tokenizer = pre_tokenizers.Whitespace()
    t.decoder = decoders.BPEDecoder()
    t = trained(t, trainers.BpeTrainer(vocab_size=420, special_tokens=["<unk>"], limit_alphabet=90,
                                       end_of_word_suffix="</w>", show_progress=False))
    t.add_tokens([AddedToken("LittleBoat", normalized=True), AddedToken("[X]", normalized=False)])
    yield "clip", t
    t = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    t.pre_tokenizer = pre_tokenizers.Whitespace()
    t = trained(t, trainers.WordLevelTrainer(vocab_size=60, special_tokens=["[UNK]"],
                                             show_progress=False))
    yield "words", t


FLAGS = ("single_word", "lstrip", "rstrip", "normalized")
FLAG_TEXTS = ["ab", " ab ", "xab", "abx", "ab_", "_ab", "ab1", "AB ab Ab", "\tab\n\n c", "  ab  ab  ", "\u00e9ab", "ab\u4e2d",
              "abab", "a b", "ab-ab", "-ab.", "ab\u3000", "\u3000 ab", "abba", "cab ab c", "ab ba", "abcd", "ab cd", "cdab",
              "x cd ab", ""]


def flagged():
    """Every set of flags of an added token, and one beside it that is longer and starts alike."""
    for bits in range(16):
        flags = {f: bool(bits >> i & 1) for i, f in enumerate(FLAGS)}
        letters = {c: i for i, c in enumerate(["u", "a", "b", "c", "d", "x", " ", "\n", "_", "-"])}
        t = with_parts(
            normalizer={"type": "Lowercase"},
            pre_tokenizer={"type": "Split", "pattern": {"Regex": "[\\s\\S]"}, "behavior": "Isolated", "invert": False},
            model={"type": "WordLevel", "vocab": letters, "unk_token": "u"},
            added_tokens=[{"id": 20, "content": "ab", "special": False, **flags},
                          {"id": 21, "content": "abcd", "special": bits % 2 == 0,
                           **{f: not flags[f] if f != "normalized" else flags[f] for f in FLAGS}}])
        yield "flags " + " ".join(f for f in FLAGS if flags[f]), t


def trained_lines(tokenizer):
    tokenizer.train_from_iterator(
        [line for line in CORPUS.split("\n")],
        trainers.BpeTrainer(vocab_size=420, special_tokens=["<unk>"], limit_alphabet=100,
                            show_progress=False))
    return tokenizer.to_str()


def word_piece_training():
    """Words with counts, and the vocabulary trained on them. Pair counts differ (random counts of many
    words), because the library settles ties in the order of a hash table."""
    rng = random.Random(9)
    letters = "abcdefgh\u00e9\ud55c"
    words = {"".join(rng.choice(letters) for _ in range(rng.randrange(2, 9))): rng.randrange(1, 4000)
             for _ in range(150)}
    text = " ".join(w for w, n in words.items() for _ in range(n))
    made = []
    for _ in range(3):
        t = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        t.normalizer = normalizers.BertNormalizer(lowercase=False, strip_accents=False)
        t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        t.train_from_iterator([text], trainers.WordPieceTrainer(
            vocab_size=150, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
            show_progress=False))
        made.append(t.get_vocab())
    assert set(made[0]) == set(made[1]) == set(made[2])
    # Ids of merged tokens are the same in all runs; characters inside words swap theirs.
    fixed = {k: v for k, v in made[0].items() if all(m[k] == v for m in made) and
             not (k.startswith("##") and len(k) == 3)}
    return {"words": words, "vocab": sorted(made[0]), "ids": fixed}


def main():
    rng = random.Random(5)
    mixed = [p for p in TEXTS if 0 < len(p) < 30]
    extra = ["The \uff21\ufb01 e\u0301\u3000x \u2460", "  two  spaces ", "\u2581the \u2581 x", "LittleBoat littleboat [X]",
             "word Word  words", "WE DON'T do not. a , b ?", "\u0130\u0131 \u1e9e\u00df \u03a3\u03c3\u03c2 \u01c5", "\u1100\u1161\u11a8\u3131",
             "x" * 50 + " y", "\ud55c\uad6d\uc5b4\ub97c \ubc30\uc6b0\ub2e4", "abc\u00addef", "\u4e2d\u6587\u5b57\u7b26"]
    texts = extra + [t for t in TEXTS if len(t) < 60] + [
        "".join(rng.choice(mixed) for _ in range(rng.randrange(2, 6))) for _ in range(10)]
    golden = {"normalizers": [], "pre_tokenizers": [], "decoders": [], "tokenizers": [],
              "word_piece_training": word_piece_training()}
    for part in NORMALIZERS:
        f = with_parts(normalizer=part).normalizer.normalize_str
        golden["normalizers"].append({"json": part, "cases": [
            [t, f(t)] for t in rng.sample(texts, 22)]})
    for part in PRE_TOKENIZERS:
        f = with_parts(pre_tokenizer=part).pre_tokenizer.pre_tokenize_str
        golden["pre_tokenizers"].append({"json": part, "cases": [
            [t, [p for p, _ in f(t)]] for t in rng.sample(texts, 16)]})
    for part in DECODERS:
        cases = []
        for _ in range(14):
            tokens = [rng.choice(PIECES) for _ in range(rng.randrange(1, 9))]
            made = with_parts(decoder=part, model={
                "type": "WordLevel", "unk_token": "a", "vocab": {p: i for i, p in enumerate(PIECES)}})
            cases.append([tokens, made.decode([PIECES.index(p) for p in tokens])])
        golden["decoders"].append({"json": part, "cases": cases})
    for name, t, tried in [(*made, texts) for made in tokenizers_to_try()] + [(*made, FLAG_TEXTS) for made in flagged()]:
        cases = []
        for text in tried:
            ids = t.encode(text, add_special_tokens=False).ids
            cases.append([text, ids, t.decode(ids, skip_special_tokens=False)])
        pair = t.encode("The boat", "of the sea")
        golden["tokenizers"].append({
            "name": name, "json": json.loads(t.to_str()), "cases": cases,
            "single": t.encode("The boat").ids, "pair": pair.ids, "types": pair.type_ids})
    text = json.dumps(golden, ensure_ascii=False, separators=(",", ":"))
    text = text.replace('},{"', '},\n{"').replace("\u2028", "\\u2028").replace("\u0085", "\\u0085")
    (HERE / "text_components.json").write_text(text + "\n")
    print(len(text.encode()), "bytes")


if __name__ == "__main__":
    main()
