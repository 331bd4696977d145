#!/usr/bin/env python3
"""Makes text_folders.json: what transformers reads from folders with a tokenizer and configuration
beside it, the truth for tests/engine/text/test_folders.cpp.

    python text_make_folders.py       (writes beside itself; needs: pip install transformers)

A case: `form` (vocab.json and merges.txt of tokenizer_gpt2.json for gpt2 and qwen2, `bert` for
vocab.txt, tokenizer_gpt2.json itself for json), `files` beside it, and either `error`, or the added
tokens by id (content and flags), the roles, and for each of `texts` its ids without and with special
tokens. `moved`: a file gives an id other than the one the token gets; `absent`: tokenizer.json lacks the
token of a role.
"""
import json
import pathlib
import random
import shutil
import tempfile

from transformers import AddedToken, BertTokenizer, GPT2Tokenizer, PreTrainedTokenizerFast, Qwen2Tokenizer
from transformers.utils import logging

HERE = pathlib.Path(__file__).parent
logging.set_verbosity_error()
R = random.Random(20261124)
ROLES = ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"]
BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "boat", "##s", "sea", "<in>", "it", "'",
        "l", "##l", "<", ">", "x", "y", "[", "]", "z", "##z"]
TEXTS = ["the boat <x> the sea", "the<y>boats  <in>  sea<z>", " it'll [MASK] sea [CLS]",
         "<|endoftext|> the <|endoftext|>", "THE Boat <X> <in>"]
CLASSES = {"gpt2": GPT2Tokenizer, "qwen2": Qwen2Tokenizer, "bert": BertTokenizer,
          "json": PreTrainedTokenizerFast}


def token(typed):
    content = R.choice(["<x>", "<y>", "<z>", "<in>", "<|endoftext|>", "[MASK]", "the", "<X>"])
    if R.random() < 0.5:
        return content
    entry = {"content": content}
    if typed:
        entry["__type"] = "AddedToken"
    for key in ["lstrip", "rstrip", "single_word", "normalized"]:
        if R.random() < 0.4:
            entry[key] = R.random() < 0.6
    if typed and R.random() < 0.3:
        entry["special"] = R.random() < 0.5
    return entry


def roles(to, typed, share):
    for key in ROLES:
        if R.random() < share:
            to[key] = None if typed and R.random() < 0.15 else token(typed)


def size_of(form):
    if form == "bert":
        return len(BERT)
    return len(json.loads((HERE / "tokenizer_gpt2.json").read_text())["model"]["vocab"])


def case(form):
    files, config = {}, {}
    roles(config, True, 0.25)
    if form == "bert":  # transformers puts a token "None" around texts where there is none
        config = {k: v for k, v in config.items() if v or k not in ("unk_token", "cls_token", "sep_token")}
    if R.random() < 0.3:
        key = R.choice(["additional_special_tokens", "extra_special_tokens"])
        config[key] = [token(True) for _ in range(R.randrange(3))]
    if R.random() < 0.15:
        config["image_token"] = "<x>"
    if R.random() < 0.3 and form in ("gpt2", "qwen2"):
        config["add_bos_token"] = R.random() < 0.7
        config["add_eos_token"] = R.random() < 0.5
    if R.random() < 0.2 and form != "json":
        config["add_prefix_space" if form != "bert" else "do_lower_case"] = R.random() < 0.5
    first = size_of(form)
    new = R.sample(["<x>", "<y>", "<z>", "<w>"], R.randrange(4))
    if R.random() < 0.35:
        decoder = {}
        for i, content in enumerate(new):
            decoder[str(first + i)] = {"content": content, "lstrip": R.random() < 0.3,
                                       "rstrip": R.random() < 0.3, "normalized": R.random() < 0.4,
                                       "single_word": False, "special": R.random() < 0.5}
        if R.random() < 0.2 and decoder:
            decoder[str(first + len(new) + 3)] = {"content": "<gap>", "special": True}
        config["added_tokens_decoder"] = decoder
    if R.random() < 0.4:
        files["added_tokens.json"] = {content: first + i for i, content in enumerate(new)}
    if R.random() < 0.5:
        spoken = {}
        roles(spoken, False, 0.3)
        if R.random() < 0.3:
            key = R.choice(["additional_special_tokens", "extra_special_tokens"])
            spoken[key] = [R.choice(["<x>", "<y>", "the"]) for _ in range(R.randrange(3))]
        files["special_tokens_map.json"] = spoken
    if R.random() < 0.85 or not files:
        files["tokenizer_config.json"] = config
    return {"form": form, "files": files}


def write(folder, c):
    gpt2 = json.loads((HERE / "tokenizer_gpt2.json").read_text())
    if c["form"] == "bert":
        (folder / "vocab.txt").write_text("\n".join(BERT) + "\n")
    elif c["form"] == "json":
        shutil.copy(HERE / "tokenizer_gpt2.json", folder / "tokenizer.json")
    else:
        (folder / "vocab.json").write_text(json.dumps(gpt2["model"]["vocab"]))
        merges = [" ".join(m) if isinstance(m, list) else m for m in gpt2["model"]["merges"]]
        (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n")
    for name, content in c["files"].items():
        (folder / name).write_text(json.dumps(content))


def declared(c):
    """Ids that count: those of the decoder, or else of added_tokens.json."""
    config = c["files"].get("tokenizer_config.json", {})
    if "added_tokens_decoder" in config:
        return {e["content"]: int(i) for i, e in config["added_tokens_decoder"].items()}
    return c["files"].get("added_tokens.json", {})


def ask(c):
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write(folder, c)
        try:
            return dict(c, **answers(CLASSES[c["form"]].from_pretrained(folder), c))
        except Exception as e:  # what it cannot read or use
            return dict(c, error=type(e).__name__)


def answers(t, c):
    flags = lambda a: [a.content, a.lstrip, a.rstrip, a.single_word, a.normalized, a.special]
    return {
        "added": {str(i): flags(a) for i, a in t.backend_tokenizer.get_added_tokens_decoder().items()},
        "roles": {k: getattr(t, k) for k in ["bos_token", "eos_token", "pad_token", "unk_token"]},
        "absent": c["form"] == "json" and any(
            i >= size_of("json") and a.content not in declared(c) and
            (a.content in [t.bos_token, t.eos_token, t.unk_token] or
             a.content == t.pad_token != t.sep_token)  # which comes before it
            for i, a in t.backend_tokenizer.get_added_tokens_decoder().items()),
        "moved": declared(c) != {content: t.convert_tokens_to_ids(content) for content in declared(c)},
        "texts": [[text, t(text, add_special_tokens=False)["input_ids"], t(text)["input_ids"]]
                  for text in TEXTS]}


def typed(content, **flags):
    return {"__type": "AddedToken", "content": content, **flags}


def special_cases():
    """What random folders seldom hold."""
    first = size_of("gpt2")
    yield "gpt2", {"added_tokens.json": {"<x>": first},  # the list comes too late to make it special
                   "special_tokens_map.json": {"additional_special_tokens": ["<x>", "<y>"]}}
    yield "bert", {"added_tokens.json": {"<x>": len(BERT)},
                   "special_tokens_map.json": {"additional_special_tokens": ["<x>"], "pad_token": "<z>"}}
    # One token in two words: equal before a role makes them special, or not.
    yield "gpt2", {"tokenizer_config.json": {
        "eos_token": typed("<x>", single_word=True, normalized=True),
        "sep_token": typed("<x>", single_word=True)}}
    yield "gpt2", {"tokenizer_config.json": {"cls_token": typed("<x>", normalized=True)},
                   "special_tokens_map.json": {"bos_token": {"content": "<x>", "normalized": True},
                                               "sep_token": {"content": "<x>", "lstrip": True}}}
    yield "bert", {"tokenizer_config.json": {
        "eos_token": typed("<x>", lstrip=True), "pad_token": "<x>",
        "extra_special_tokens": [typed("<x>", lstrip=True, special=False)]}}
    # Names in the newer key leave the older list as it is, wherever they stand; a name said twice
    # is one token, that of the configuration.
    names = {"extra_special_tokens": {"image_token": "<y>"}}
    yield "json", {"tokenizer_config.json": {"additional_special_tokens": ["<x>"], **names}}
    yield "gpt2", {"tokenizer_config.json": {"image_token": "<z>", **names},
                   "special_tokens_map.json": {"image_token": "<x>"}}
    yield "gpt2", {"tokenizer_config.json": {"extra_special_tokens": ["<x>"],
                                             "additional_special_tokens": ["<z>"]},
                   "special_tokens_map.json": names}
    yield "bert", {"tokenizer_config.json": {  # a name may be that of a role
        "image_token": typed("<x>", lstrip=True), "extra_special_tokens": {"cls_token": "the"}}}


if __name__ == "__main__":
    cases = [ask(case(form)) for form in ["gpt2", "qwen2", "bert", "json"] for _ in range(56)]
    cases += [ask({"form": form, "files": files}) for form, files in special_cases()]
    out = {"bert": BERT, "cases": cases}
    lines = ",\n".join(json.dumps(c, ensure_ascii=False) for c in cases)
    (HERE / "text_folders.json").write_text(
        '{"bert": ' + json.dumps(BERT) + ', "cases": [\n' + lines + "\n]}\n")
    print(len(cases), "cases,", sum("error" in c for c in cases), "errors,",
          sum(c.get("moved", False) for c in cases), "moved")
