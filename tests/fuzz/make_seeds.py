#!/usr/bin/env python3
"""Writes the seeds of the fuzz targets: small files that reach far into each reader.

  python tests/fuzz/make_seeds.py

Needs nothing beyond Python and the program zstd. Findings, which have names of their own, stay."""
import gzip
import json
import pathlib
import struct
import subprocess

HERE = pathlib.Path(__file__).parent
GOLDEN = HERE.parent / "golden"
CORPUS = HERE / "corpus"
STATE_VERSION = 4  # of tools/checkpoint/checkpoint_seal.h


def seed(target, name, content):
    path = CORPUS / target / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def parts(*texts):
    return "\n----\n".join(texts)


def zstd(content):
    return subprocess.run(["zstd", "-q", "-c", "--check"], input=content, stdout=subprocess.PIPE, check=True).stdout


def safetensors():
    def file(header, data=b"", pad=0):
        text = header if isinstance(header, str) else json.dumps(header)
        text += " " * pad
        return struct.pack("<Q", len(text)) + text.encode() + data

    tensor = lambda dtype, shape, begin, end: {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    seed("safetensors", "golden", (GOLDEN / "io_small.safetensors").read_bytes())
    seed("safetensors", "empty", file({}))
    seed("safetensors", "metadata", file({"__metadata__": {"format": "pt", "a": "b"}}))
    seed("safetensors", "two", file({"a": tensor("F32", [2, 2], 0, 16), "b": tensor("BF16", [3], 16, 22)},
                                    bytes(range(22)), 5))
    seed("safetensors", "scalar", file({"s": tensor("F64", [], 0, 8), "z": tensor("U8", [0, 4], 8, 8)}, b"\0" * 8))
    for dtype, bits in (("F16", 16), ("I64", 64), ("BOOL", 8), ("F4", 4), ("F6_E2M3", 6), ("C64", 64)):
        seed("safetensors", "dtype_" + dtype.lower(), file({"x": tensor(dtype, [8], 0, bits)}, b"\x3f" * bits))


def gguf():
    def string(s):
        return struct.pack("<Q", len(s)) + s.encode()

    def key(name, kind, value):
        return string(name) + struct.pack("<I", kind) + value

    def file(keys, tensors=(), data=b"", version=3, alignment=32):
        out = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(keys)) + b"".join(keys)
        out += b"".join(tensors)
        return out + b"\0" * (-len(out) % alignment) + data

    def tensor(name, shape, kind, offset):
        return (string(name) + struct.pack("<I", len(shape)) + b"".join(struct.pack("<Q", n) for n in shape) +
                struct.pack("<IQ", kind, offset))

    seed("gguf", "golden", (GOLDEN / "io_small.gguf").read_bytes()[:6240])
    seed("gguf", "empty", file([]))
    numbers = [key("k%d" % kind, kind, struct.pack("<" + form, 1))
               for kind, form in enumerate("BbHhIif?") ] + [key("u", 10, struct.pack("<Q", 2**63)),
                                                           key("i", 11, struct.pack("<q", -5)),
                                                           key("d", 12, struct.pack("<d", 0.5))]
    seed("gguf", "numbers", file(numbers))
    seed("gguf", "strings", file([key("general.architecture", 8, string("gpt2")),
                                  key("list", 9, struct.pack("<IQ", 8, 3) + string("a") + string("") + string("bc"))]))
    nested = struct.pack("<IQ", 9, 1) + struct.pack("<IQ", 9, 2) + (struct.pack("<IQ", 5, 1) + b"\1\0\0\0") * 2
    seed("gguf", "nested", file([key("n", 9, nested), key("ints", 9, struct.pack("<IQ3i", 5, 3, 1, -2, 3))]))
    f32 = struct.pack("<8f", *range(8))
    seed("gguf", "tensors", file([key("general.alignment", 4, struct.pack("<I", 32))],
                                 [tensor("a", [4, 2], 0, 0), tensor("q", [32], 8, 32)], f32 + b"\1" * 34 + b"\0" * 30))
    seed("gguf", "old", file([], version=2))
    seed("gguf", "floats", struct.pack("<64f", *[0.25 * i - 3 for i in range(64)]))
    seed("gguf", "floats_small", struct.pack("<32f", *[1e-7 * i for i in range(32)]))


def tokenizers():
    components = json.loads((GOLDEN / "text_components.json").read_text())

    def small(model, kept):
        """A tokenizer with the first tokens only, and the merges among them."""
        model = json.loads(json.dumps(model))
        inner = model["model"]
        if isinstance(inner["vocab"], list):
            inner["vocab"] = inner["vocab"][:kept]
        else:
            inner["vocab"] = {t: i for t, i in inner["vocab"].items() if i < kept}
        if "merges" in inner:
            pairs = [m.split(" ") if isinstance(m, str) else m for m in inner["merges"]]
            inner["merges"] = [m for m in pairs if len(m) == 2 and all(t in inner["vocab"] for t in m)
                               and "".join(m) in inner["vocab"]]
        return model

    def write(name, model, text="", config=""):
        seed("tokenizer", name, parts(json.dumps(model, ensure_ascii=False, separators=(",", ":")), text, config))

    text = "The boat and the sea, 12 boats.\nA line \u00e9t\u00e9 <unk> \ud55c\uae00\n"
    for one in components["tokenizers"]:
        if one["name"] == "unigram_bytes":
            continue
        write(one["name"], small(one["json"], 120), text)
    for name in ("gpt2", "llama3"):
        write(name, small(json.loads((GOLDEN / f"tokenizer_{name}.json").read_text()), 280), text,
              '{"eos_token":"<|endoftext|>","add_prefix_space":true}')
    vocab = {"<unk>": 0, "a": 1, "b": 2, "\u2581": 3, "ab": 4, "the": 5, "##b": 6, "<0x41>": 7}
    base = {"added_tokens": [{"id": 0, "content": "<unk>", "special": True}],
            "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "<unk>"}}
    for kind, key in (("normalizers", "normalizer"), ("pre_tokenizers", "pre_tokenizer"), ("decoders", "decoder")):
        for i, one in enumerate(components[kind]):
            if i % 3 == 0:
                write(f"{key}_{i}", {**base, key: one["json"]})
    write("bpe", {**base, "model": {"type": "BPE", "vocab": vocab, "merges": ["a b"], "unk_token": "<unk>",
                                     "byte_fallback": True, "fuse_unk": True}}, "ab aab A b")
    write("strip", {**base, "added_tokens": [{"id": 9, "content": " x", "lstrip": True, "rstrip": True},
                                             {"id": 10, "content": "y", "single_word": True, "normalized": True}],
                    "pre_tokenizer": {"type": "Whitespace"}}, "a  x  y yy b")
    write("template", {**base, "post_processor": {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<unk>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<unk>": {"id": "<unk>", "ids": [0], "tokens": ["<unk>"]}}}})


def configs():
    seed("config", "small", parts("model: {n_layer: 2, n_head: 2, n_embd: 32, n_positions: 64}\ntrain_data: text.txt\n"
                                  "output_dir: run\nmax_steps: 12\nmemory: 256MiB\nlearning_rate: 5e-4\n",
                                  "memory=8GiB\nmodel.n_layer=6"))
    seed("config", "lists", "train_data:\n  - a.txt\n  - 'b/*.txt'\neval_data: [c.txt, \"d e.txt\"]\nallow: []\n"
         "report_to: none\nbitwise: true\n")
    seed("config", "named", parts("model: gpt2\ninit: scratch\noptim: sgd\nsgd_momentum: 0.9\n"
                                  "lr_scheduler_type: warmup_stable_decay\nlr_decay_steps: 0.2\nwarmup_ratio: 0.1\n"
                                  "recompute: '0-5: block, 6-11: none'\n",
                                  "max_time=10m\nnum_train_epochs=null\nseed=7\nresume=latest"))
    seed("config", "json", '{"model": {"base": "gpt2", "n_layer": 6}, "global_batch_tokens": 4096, "max_length": 128}\n')
    seed("config", "sampling", "sample_prompt: \"a\\tb\\u00e9\"\nsample_temperature: 0.5\nsample_top_k: 0\n"
         "eval_fraction: .1\nsave_dtype: bf16\nprecision: bf16\nper_device_train_batch_size: 4\n"
         "gradient_accumulation_steps: 2\n")
    seed("config", "anchors", "train_data: &a x.txt\neval_data: *a\n# comment\n---\n")
    seed("config", "text", "train_data: |\n  two\n  lines\ntokenizer: >-\n  a\n  b\noutput_dir: ~\n")


def tokens():
    def file(tokens, index=b"", side=b"", T=7, held=1):
        return struct.pack("<BBHH", T, held, len(index), len(side)) + index + side + tokens

    ids = [i * 7 % 300 for i in range(60)]
    narrow, wide = struct.pack("<60H", *ids), struct.pack("<60I", *ids)
    seed("tokens", "nanogpt", file(narrow))
    seed("tokens", "narrow", file(struct.pack("<256i", 20240520, 1, 60, *[0] * 253) + narrow, T=3, held=0))
    seed("tokens", "wide", file(struct.pack("<256i", 20240801, 7, 60, *[0] * 253) + wide))
    seed("tokens", "foreign", file(struct.pack("<256i", 20240326, 1, 60, *[0] * 253) + narrow))

    ours = struct.pack("<3i4sii", 20240520, 1, 60, b"SNUG", 1, 0)
    ours += struct.pack("<QqqqQ", 5, 60, 3, 300, 0)  # a wrong digest: the target writes right ones itself
    ours += b"\0" * (1024 - len(ours))
    index = b"SNUGDOCS" + struct.pack("<qqq", 1, 3, 60) + struct.pack("<qqq", 20, 33, 60)
    side = json.dumps({"tokenizer_fingerprint": "0000000000000005", "vocab_size": 300, "tokens": 60, "documents": 3,
                       "source_fingerprint": "00000000000000ff", "source_files": 1}).encode()
    seed("tokens", "ours", file(ours + narrow, index, side, T=4, held=3))


def corpora():
    def file(kind, packing, content, piece=20, found=0):
        return bytes([kind + 4 * packing + 12 * found, piece]) + content

    text = "Some words in a line.\nAnother line\n\nand \u00e9t\u00e9 \ud55c\uae00 end\n".encode()
    records = b'{"text": "one\\nline", "id": 1}\n\n{"id": 2, "text": "\\u00e9\\ud83d\\ude00 two"}\n{"text":""}\n'
    commas = b'id,text\r\n1,"a ""quoted"", field\nof two lines"\r\n\r\n2,plain\r\n3,\r\n'
    tabs = commas.replace(b",", b"\t")
    for kind, content in enumerate((text, records, commas, tabs)):
        seed("corpus", f"plain_{kind}", file(kind, 0, content))
        seed("corpus", f"found_{kind}", file(kind, 0, content, 3, 1))
        seed("corpus", f"gzip_{kind}", file(kind, 1, gzip.compress(content, mtime=0)))
        seed("corpus", f"zstd_{kind}", file(kind, 2, zstd(content)))
    seed("corpus", "mark", file(0, 0, b"\xef\xbb\xbftext"))
    seed("corpus", "members", file(0, 1, gzip.compress(b"a", mtime=0) + gzip.compress(b"b", mtime=0)))
    seed("corpus", "frames", file(0, 2, zstd(b"a") + zstd(b"b" * 3000)))
    seed("corpus", "expands", file(0, 1, gzip.compress(b"a b\n" * 20000, mtime=0)))


def states():
    watch = {"seen": 2, "diverged": False, "loss_said": -50, "loss_unsaid": 0, "lowest": 0.0, "lowest_step": -1, "norm_said": -50,
             "norm_unsaid": 0, "losses": [7.5] + [0.0] * 127, "norms": [2.25] * 2 + [0.0] * 126}
    pinned = {"seed": 42, "data_seed": -1, "train_tokens": 1000, "train_samples": 15, "data": "0123456789abcdef",
              "global_batch": 6, "max_length": 64, "packing_boundaries": False, "micro_batch": 3, "head_rows": 64, "threads": 2,
              "precision": "bf16", "optimizer": "adamw", "instruction_set": "avx2", "recompute": "none",
              "kernels": [{"class": "nt wide long", "dtype": "bf16 bf16", "kernel": "avx512_bf16"}],
              "attention": "bf16 bf16 avx512_bf16", "model": "fedcba9876543210"}
    state = {"snug_version": STATE_VERSION, "global_step": 2, "updates": 2, "samples": 12, "elapsed_seconds": 0.5,
             "window_loss": 13.5, "window_tokens": 768, "window_steps": 2, "best_eval_loss": -1.0,
             "best_eval_step": 0, "evals_without_gain": 0, "best_saved_loss": -1.0, "best_saved_step": -1, "evaluation_due": False, "loss_watch": watch,
             "hyperparameters": {"learning_rate": "0.0006", "adam_beta1": "0.9"}, "pinned": pinned}
    seed("state", "whole", json.dumps(state, indent=1))
    seed("state", "small", json.dumps({**state, "loss_watch": {}, "pinned": {**pinned, "kernels": []}}))
    seed("state", "kernel_of_a_gpu", json.dumps({**state, "pinned": {
        **pinned, "kernels": [{"class": "nt wide long", "dtype": "bf16 bf16", "kernel": "cublaslt"}]}}))
    seed("state", "version", json.dumps({"snug_version": 99}))
    seed("state", "empty", "{}")


def rows():
    def text(name, content, kind=0, labels=1, header=0, names=0, problem=0, length=20):
        choice = kind + 3 * labels + 12 * header + 36 * names + 72 * problem
        return struct.pack("<BHB", name, choice, length - 1) + content.encode()

    tsv, csv, jsonl, array, txt = range(5)
    seed("rows", "tsv", text(tsv, "text\tlabel\na b\t1\nb ba.\t0\n\t1\n"))
    seed("rows", "bare", text(tsv, "a b\tx\nb ba.\ty\n", names=1))
    seed("rows", "csv", text(csv, 'sentence1,sentence2,label\n"a, b","b\n""a",0.5\nab,b,1\n', length=6))
    seed("rows", "records", text(jsonl, '{"text": "a b", "label": ["x", "y"]}\n{"text": "b", "label": []}\n'))
    seed("rows", "hot", text(jsonl, '{"text": "a b", "label": [0, 1]}\n{"text": "b", "label": [1, 0.5]}\n'))
    seed("rows", "array", text(array, '[{"text": "a b", "label": true},\n {"text": "b", "label": false}]'))
    seed("rows", "words", text(jsonl, '{"tokens": ["a", "bab"], "tags": ["x", -100]}\n', kind=1))
    seed("rows", "ids", text(jsonl, '{"input_ids": [1, 4, 2, 0], "attention_mask": [1, 1, 1, 0], "labels": '
                                    '[-100, 4, 2, 0], "token_type_ids": [0, 0, 1, 0]}\n', kind=1))
    seed("rows", "lines", text(txt, "a b\n\nba. b\n", kind=2))

    def file(form, values, words, ends, longest, types=0, classes=0, report=b"{}"):
        head = b"SNUGROWS" + struct.pack("<ii7q", 1, form, values, len(ends), ends[-1], longest, 9, types, classes)
        head += struct.pack("<4QqQQ", 0, 0, 0, 0, len(report), 0, 0)
        index = b"SNUGRIDX" + struct.pack(f"<3q{len(ends)}q", 1, len(ends), 0, *ends)
        body = head + struct.pack(f"<{len(words)}i", *words) + report
        return struct.pack("<BHH", 255, 6, len(index)) + index + body

    seed("rows", "file", file(4, 0, [1, 4, 2, 0, 5, 1], [3, 4], 3, classes=2))
    seed("rows", "file_types", file(3, 0, [1, 4, 0, 1, -100, 3, 5, 0, 2], [2, 3], 2, types=2, classes=4))
    seed("rows", "file_values", file(8, 2, [1, 4, 0, 0, 5, 0, 0], [2, 3], 2))


for write in (safetensors, gguf, tokenizers, configs, tokens, corpora, rows, states):
    write()
total = sum(f.stat().st_size for f in CORPUS.rglob("*") if f.is_file())
print(f"{sum(1 for f in CORPUS.rglob('*') if f.is_file())} seeds, {total} bytes")
