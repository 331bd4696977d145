"""Makes io_small.gguf with the gguf package, and checks GGUF files that Snug wrote with it.

  io_gguf.py                              makes io_small.gguf beside this script
  io_gguf.py --check FILE --model DIR     reads FILE with the gguf package and compares it with the
                                          folder it was made from: names, types, offsets, every value
                                          (Q8_0 byte for byte with the package's own encoder), the
                                          tokenizer, and, for f32/f16/bf16, what transformers computes
                                          with the file and with the folder
"""
import argparse
import json
import pathlib
import sys

import numpy as np
import gguf

HERE = pathlib.Path(__file__).resolve().parent


def formula(n, k):
    """Values of tensor k: exact in f32, of many sizes, with a block of zeros and of halves."""
    i = np.arange(n, dtype=np.int64)
    v = ((i * 2654435761 + k * 40503) % 65536 - 32768).astype(np.float32)
    v *= np.exp2(-((i // 32) % 24).astype(np.float32))
    v[32:64] = 0
    if n >= 96:
        v[64:96] = np.arange(-16, 16, dtype=np.float32) + 0.5
        v[64] = 127.0
    return v


def make():
    path = HERE / "io_small.gguf"
    w = gguf.GGUFWriter(str(path), "test")
    w.add_uint8("k.u8", 200)
    w.add_int8("k.i8", -100)
    w.add_uint16("k.u16", 60000)
    w.add_int16("k.i16", -30000)
    w.add_uint32("k.u32", 4000000000)
    w.add_int32("k.i32", -2000000000)
    w.add_float32("k.f32", 1.5)
    w.add_bool("k.bool", True)
    w.add_string("k.string", "한글 \"quotes\"")
    w.add_uint64("k.u64", 2**63 + 1)
    w.add_int64("k.i64", -(2**62))
    w.add_float64("k.f64", 0.1)
    w.add_array("k.strings", ["a", "", "long " * 20])
    w.add_array("k.ints", [1, -2, 3, 4, 5, 6])
    w.add_array("k.nested", [[1, 2], [3, 4, 5]])
    f32 = formula(3 * 64, 0).reshape(3, 64)
    w.add_tensor("t.f32", f32)
    w.add_tensor("t.vector", formula(7, 1))
    for k, (name, kind) in enumerate(
        [("t.f16", gguf.GGMLQuantizationType.F16), ("t.bf16", gguf.GGMLQuantizationType.BF16),
         ("t.q8_0", gguf.GGMLQuantizationType.Q8_0), ("t.q4_0", gguf.GGMLQuantizationType.Q4_0)], 2):
        x = formula(5 * 160, k).reshape(5, 160)
        w.add_tensor(name, gguf.quants.quantize(x, kind), raw_dtype=kind)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    print(f"{path}: {path.stat().st_size} bytes")


def fail(text):
    print("FAILED:", text)
    sys.exit(1)


def value(reader, key):
    field = reader.fields.get(key)
    return None if field is None else field.contents()


NAMES = {"ln_1": "attn_norm", "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output", "ln_2": "ffn_norm",
         "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"}


def expected_tensors(folder):
    import torch
    from transformers import GPT2LMHeadModel

    model = GPT2LMHeadModel.from_pretrained(folder, dtype=torch.float32)
    out = {}
    for name, t in model.state_dict().items():
        x = t.numpy()
        short = name.removeprefix("transformer.")
        base, kind = short.rsplit(".", 1)
        if base == "wte":
            out["token_embd.weight"] = x
        elif base == "wpe":
            out["position_embd.weight"] = x
        elif base == "lm_head":
            out["output.weight"] = x
        elif base == "ln_f":
            out[f"output_norm.{kind}"] = x
        else:
            _, layer, part = base.split(".", 2)
            if ("c_" in part) and kind == "weight":
                x = x.T
            out[f"blk.{layer}.{NAMES[part]}.{kind}"] = np.ascontiguousarray(x)
    return model, out


def check(path, folder):
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    reader = gguf.GGUFReader(path)
    config = json.loads((pathlib.Path(folder) / "config.json").read_text())
    model, want = expected_tensors(folder)
    got = {t.name: t for t in reader.tensors}
    if sorted(got) != sorted(want):
        fail(f"tensors {sorted(set(got) ^ set(want))}")
    # gguf-py's own table must know every name for this architecture.
    table = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GPT2, config["n_layer"])
    known = {v[1] for v in table.mapping.values()}
    worst = 0.0
    types = {}
    for name, t in got.items():
        if name.rsplit(".", 1)[0] not in known:
            fail(f"{name} is not a tensor of gpt2 for the gguf package")
        if t.data_offset % 32:
            fail(f"{name} at {t.data_offset}")
        x = want[name]
        if list(t.shape) != list(x.shape[::-1]):
            fail(f"{name}: {t.shape} instead of {x.shape[::-1]}")
        types[t.tensor_type.name] = types.get(t.tensor_type.name, 0) + 1
        raw = gguf.quants.quantize(x.astype(np.float32), t.tensor_type)
        if raw.tobytes() != np.ascontiguousarray(t.data).tobytes():
            fail(f"{name}: other bytes than the gguf package makes")
        back = gguf.quants.dequantize(t.data, t.tensor_type).reshape(x.shape)
        worst = max(worst, float(np.abs(back - x).max() / max(1e-30, np.abs(x).max())))
    keys = {"general.architecture": "gpt2", "gpt2.block_count": config["n_layer"],
            "gpt2.context_length": config["n_positions"], "gpt2.embedding_length": config["n_embd"],
            "gpt2.feed_forward_length": config.get("n_inner") or 4 * config["n_embd"],
            "gpt2.attention.head_count": config["n_head"], "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.add_bos_token": False, "general.alignment": None}
    for key, v in keys.items():
        if value(reader, key) != v:
            fail(f"{key}: {value(reader, key)} instead of {v}")
    if abs(value(reader, "gpt2.attention.layer_norm_epsilon") - config["layer_norm_epsilon"]) > 1e-9:
        fail("layer_norm_epsilon")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokens = value(reader, "tokenizer.ggml.tokens")
    kinds = value(reader, "tokenizer.ggml.token_type")
    vocab = {i: t for t, i in tokenizer.get_vocab().items()}
    if len(tokens) != config["vocab_size"] or len(kinds) != len(tokens):
        fail("number of tokens")
    for i, token in enumerate(tokens):
        if i in vocab and token != vocab[i]:
            fail(f"token {i}: {token!r} instead of {vocab[i]!r}")
        if i not in vocab and (token != f"[PAD{i}]" or kinds[i] != 5):
            fail(f"token {i}: {token!r}, type {kinds[i]}")
        special = i in tokenizer.all_special_ids
        if special != (kinds[i] == 3):
            fail(f"token {i}: type {kinds[i]}")
    for role in ("bos", "eos"):
        if value(reader, f"tokenizer.ggml.{role}_token_id") != getattr(tokenizer, f"{role}_token_id"):
            fail(role)
    merges = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]
    merges = [m if isinstance(m, str) else " ".join(m) for m in merges]
    if value(reader, "tokenizer.ggml.merges") != merges:
        fail("merges")
    print(f"{path}: {len(got)} tensors {types}, {len(tokens)} tokens, {len(merges)} merges, "
          f"pre {value(reader, 'tokenizer.ggml.pre')}; every tensor's bytes as the gguf package makes them, "
          f"largest relative difference {worst:.2e}")

    # transformers reads the same file with its own code. (Its reader takes n_positions to be 1024
    # whatever the file says: the config is given.)
    p = pathlib.Path(path)
    other = AutoModelForCausalLM.from_pretrained(
        str(p.parent), gguf_file=p.name, dtype=torch.float32, config=AutoConfig.from_pretrained(folder))
    ids = torch.arange(min(24, config["n_positions"]))[None] % config["vocab_size"]
    with torch.no_grad():
        a, b = model(ids).logits, other(ids).logits
    difference = float((a - b).abs().max() / a.abs().max())
    print(f"transformers: logits differ by {difference:.2e} of the largest")
    bound = {"F32": 1e-5, "F16": 5e-3, "BF16": 4e-2, "Q8_0": 4e-2}
    if difference > max(bound[t] for t in types):
        fail("logits")
    fast = AutoTokenizer.from_pretrained(str(p.parent), gguf_file=p.name)
    text = "The river, 1234 times: café 한글!\n\n  done"
    if fast.encode(text) != tokenizer.encode(text):
        fail(f"ids {fast.encode(text)} instead of {tokenizer.encode(text)}")
    print("transformers: the tokenizer from the file gives the same ids")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--check")
    parser.add_argument("--model")
    a = parser.parse_args()
    check(a.check, a.model) if a.check else make()
