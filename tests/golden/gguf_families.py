"""GGUF files that Snug wrote of Llama-, Qwen-, NeoX-, Gemma-, Phi-, OLMo2- and SmolLM3-shaped models, against
what other programs make of the folder and of the file.

  gguf_families.py --make DIR                   small random models of every family, with tokenizers, in DIR
  gguf_families.py --all DIR --snug SNUG        makes them, converts each with SNUG and checks each file
  gguf_families.py --check FILE --model FOLDER  checks one file: the gguf package reads it, every tensor is
                                                transformers' after llama.cpp's own transforms, keys are the
                                                config's; llama.cpp loads it, its ids of texts are
                                                transformers' and so is the greedy text
  --converter LLAMA.CPP                         the files of llama.cpp's convert_hf_to_gguf.py as well: the same
                                                tensors byte for byte, and the keys that differ
  --speed FILE                                  tokens a second of llama.cpp on --threads threads

Needs torch, transformers, tokenizers, gguf and llama-cpp-python (its llama.cpp is the truth), sentencepiece for
--make.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import time

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
TEXTS = ["The river runs", "In 1984, 12345 people didn't", "Once upon a time", "def main():\n    return",
         "  two spaces, and\ttabs", "café naïve Straße", "한국어 문장과 日本語", "emoji 😀 and ©", "a\n\n\nb",
         "The capital of France is", "1 + 1 = 2; 2 + 2 =", "I'LL BE THERE, she's said", "Question: what is 7*6?",
         "x" * 40, "", "Dear Sir or Madam,\n", "http://example.com/a?b=c&d=%20", "It's   a   test..."]


def fail(text):
    print("FAILED:", text)
    sys.exit(1)


# ---------------------------------------------------------------- small models


def corpus():
    paths = [p for p in (HERE.parent.parent).rglob("*.md") if ".git" not in p.parts][:60]
    lines = [line for p in paths for line in p.read_text().splitlines() if line.strip()]
    return lines + TEXTS * 3


LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace("{1,3}", "")
TEKKEN = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?"
          r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")


def byte_level(folder, rule, size=700):
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    whole = rule in ("llama-bpe", "tekken")
    tok = Tokenizer(models.BPE(ignore_merges=whole))
    own = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    off = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    pattern = {"llama-bpe": LLAMA3, "dbrx": LLAMA3, "qwen2": QWEN2, "tekken": TEKKEN}.get(rule)
    if pattern:
        tok.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), off])
    elif rule == "smollm":
        tok.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), own])
    else:
        tok.pre_tokenizer = own
    if rule == "qwen2":
        tok.normalizer = normalizers.NFC()
    tok.decoder = decoders.ByteLevel()
    special = ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"]
    tok.train_from_iterator(corpus(), trainers.BpeTrainer(
        vocab_size=size, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False))
    tok.add_tokens(["<tool>"])
    if rule in ("llama-bpe", "dbrx"):
        tok.post_processor = processors.TemplateProcessing(
            single="<|begin_of_text|> $A", pair="<|begin_of_text|> $A <|begin_of_text|> $B",
            special_tokens=[("<|begin_of_text|>", 0)])
    save(tok, folder, special[0], special[1])
    return tok.get_vocab_size()


def sentence_piece(folder, kind, size=700):
    """A SentencePiece model trained here, as transformers converts one: `kind` llama or gemma."""
    import sentencepiece as sp
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
    from tokenizers import AddedToken

    text = folder / "corpus.txt"
    text.write_text("\n".join(corpus()))
    sp.SentencePieceTrainer.train(
        input=str(text), model_prefix=str(folder / "tokenizer"), model_type="bpe", vocab_size=size,
        byte_fallback=True, split_digits=True, add_dummy_prefix=kind == "llama", remove_extra_whitespaces=False,
        normalization_rule_name="identity", character_coverage=0.9995, max_sentence_length=10000,
        allow_whitespace_only_pieces=True, minloglevel=2, num_threads=1)
    text.unlink()
    (folder / "tokenizer.vocab").unlink()
    model = sp.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    vocab = {model.id_to_piece(i): i for i in range(size)}
    scores = {p: model.get_score(i) for p, i in vocab.items()}
    merges = []
    for piece in vocab:
        if model.is_control(vocab[piece]) or model.is_byte(vocab[piece]) or model.is_unknown(vocab[piece]):
            continue
        own = [(piece[:k], piece[k:], scores[piece]) for k in range(1, len(piece))
               if piece[:k] in vocab and piece[k:] in vocab]
        merges += sorted(own, key=lambda m: (vocab[m[0]], vocab[m[1]]))
    merges = sorted(merges, key=lambda m: (m[2], len(m[0]), len(m[1])), reverse=True)
    tok = Tokenizer(models.BPE(vocab, [m[:2] for m in merges], unk_token="<unk>", fuse_unk=True,
                               byte_fallback=True))
    tok.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in ("<unk>", "<s>", "</s>")])
    if kind == "llama":
        tok.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        tok.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                         decoders.Strip(" ", 1, 0)])
    elif kind == "mistral":  # what newer files have instead
        tok.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="first", split=False)
        tok.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                         decoders.Strip(" ", 1, 0)])
    else:
        tok.normalizer = normalizers.Replace(" ", "▁")
        tok.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
        tok.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tok.add_special_tokens([AddedToken("<end_of_turn>", normalized=False, special=True)])
    tok.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B",
                                                       special_tokens=[("<s>", 1)])
    save(tok, folder, "<s>", "</s>", "<unk>")
    return tok.get_vocab_size()


TEMPLATE = ("{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{{ eos_token }}{% endfor %}"
            "{% if add_generation_prompt %}<assistant>{% endif %}")


def save(tok, folder, bos, eos, unk=None):
    from transformers import PreTrainedTokenizerFast

    fast = PreTrainedTokenizerFast(tokenizer_object=tok, bos_token=bos, eos_token=eos, unk_token=unk,
                                   clean_up_tokenization_spaces=False)
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
LLAMA3_ROPE = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 32}
LONG = {"rope_type": "longrope", "short_factor": [1.0 + 0.05 * i for i in range(6)],
        "long_factor": [2.0 + i for i in range(6)], "original_max_position_embeddings": 256}


def shapes():
    """Family, keys of its config, tokenizer."""
    small = dict(hidden_size=48, intermediate_size=80, num_hidden_layers=3, num_attention_heads=4,
                 num_key_value_heads=2, max_position_embeddings=128)
    own = dict(small, head_dim=20)
    neox = dict(hidden_size=48, intermediate_size=96, num_hidden_layers=3, num_attention_heads=3,
                max_position_embeddings=128)
    return {
        "llama": ("Llama", dict(own, tie_word_embeddings=False), "smollm"),
        "llama_bias": ("Llama", dict(small, attention_bias=True, mlp_bias=True, tie_word_embeddings=True), "dbrx"),
        "llama3": ("Llama", dict(small, rope_scaling=LLAMA3_ROPE, rope_theta=500000.0), "llama-bpe"),
        "llama_linear": ("Llama", dict(small, rope_scaling={"rope_type": "linear", "factor": 2.0}), "llama"),
        "mistral": ("Mistral", dict(own, sliding_window=None), "mistral"),
        "mistral_nemo": ("Mistral", dict(own, sliding_window=None), "tekken"),
        "qwen2": ("Qwen2", dict(small, tie_word_embeddings=True), "qwen2"),
        "qwen3": ("Qwen3", dict(own, tie_word_embeddings=False), "qwen2"),
        "qwen3_yarn": ("Qwen3", dict(own, rope_scaling=YARN), "qwen2"),
        "neox": ("GPTNeoX", dict(neox, rotary_pct=0.25, use_parallel_residual=True), "gpt-2"),
        "neox_sequential": ("GPTNeoX", dict(neox, rotary_pct=0.5, use_parallel_residual=False), "gpt-2"),
        "gemma": ("Gemma", dict(own), "gemma"),
        "gemma2": ("Gemma2", dict(own, sliding_window=8, query_pre_attn_scalar=20), "gemma"),
        "gemma3": ("Gemma3", dict(own, num_hidden_layers=7, sliding_window=8, query_pre_attn_scalar=20), "gemma"),
        "gemma3_linear": ("Gemma3", dict(own, num_hidden_layers=4, sliding_window=8, query_pre_attn_scalar=20,
                                         sliding_window_pattern=2,
                                         rope_scaling={"rope_type": "linear", "factor": 8.0}), "gpt-2"),
        # Not "phi3": a name that llama.cpp goes by.
        "phi": ("Phi3", dict(small, sliding_window=None, pad_token_id=0), "llama"),
        "phi_long": ("Phi3", dict(small, sliding_window=None, pad_token_id=0, rope_scaling=LONG,
                                   original_max_position_embeddings=256, max_position_embeddings=1024), "llama"),
        "olmo2": ("Olmo2", dict(small, tie_word_embeddings=False), "dbrx"),
        "smollm3": ("SmolLM3", dict(small, num_hidden_layers=5, tie_word_embeddings=True, pad_token_id=0), "llama-bpe"),
    }


def make(folder, names):
    import torch
    import transformers

    for k, (name, (family, keys, rule)) in enumerate(shapes().items()):
        if names and name not in names:
            continue
        out = folder / name
        out.mkdir(parents=True, exist_ok=True)
        size = (sentence_piece(out, rule) if rule in ("llama", "mistral", "gemma") else byte_level(out, rule))
        config_class = {"Gemma3": "Gemma3TextConfig"}.get(family, family + "Config")
        # Two ids without a token, and weights large enough that the best token is far from the next.
        config = getattr(transformers, config_class)(
            vocab_size=size + 2, bos_token_id=1, eos_token_id=[2, 0] if name == "llama3" else 2, **keys)
        torch.manual_seed(k)
        model = getattr(transformers, family + "ForCausalLM")(config).eval()
        with torch.no_grad():
            for p_name, p in model.named_parameters():
                p.normal_(0, 0.25) if p.dim() > 1 else p.add_(torch.randn_like(p) * 0.2)
        model.save_pretrained(out)
        print(f"{out}: {sum(p.numel() for p in model.parameters())} parameters, {size} tokens")


# ---------------------------------------------------------------- what llama.cpp's tensors should be


def turned(x, heads):
    """Rows of queries or keys as llama.cpp's neighbours: halves of a head become pairs."""
    return x.reshape(heads, 2, x.shape[0] // heads // 2, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)


PARTS = {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
         "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.qkv_proj": "attn_qkv",
         "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate",
         "mlp.up_proj": "ffn_up", "mlp.gate_up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
         "pre_feedforward_layernorm": "ffn_norm", "post_feedforward_layernorm": "post_ffw_norm",
         "attention.query_key_value": "attn_qkv", "attention.dense": "attn_output",
         "mlp.dense_h_to_4h": "ffn_up", "mlp.dense_4h_to_h": "ffn_down"}


def expected(model):
    c = model.config
    family = c.model_type
    heads = c.num_attention_heads
    keys = getattr(c, "num_key_value_heads", heads)
    out = {}
    for name, t in model.state_dict().items():
        x = t.float().numpy()
        base, kind = name.removeprefix("model.").removeprefix("gpt_neox.").rsplit(".", 1)
        if base in ("embed_tokens", "embed_in"):
            out["token_embd.weight"] = x
            continue
        if base in ("norm", "final_layer_norm"):
            target = "output_norm"
        elif base in ("lm_head", "embed_out"):
            if c.tie_word_embeddings and family not in ("gpt_neox", "olmo2"):
                continue
            target = "output"
        else:
            _, layer, part = base.split(".", 2)
            two = family.startswith("gemma") and family != "gemma" or family == "olmo2"
            part = {"post_attention_layernorm": "post_attention_norm" if two else "ffn_norm"}.get(
                part, PARTS.get(part))
            target = f"blk.{layer}.{part}"
            if family in ("llama", "mistral", "smollm3") and part in ("attn_q", "attn_k"):
                x = turned(x, heads if part == "attn_q" else keys)
            if family == "gpt_neox" and part == "attn_qkv":
                x = np.concatenate([x.reshape(heads, 3, -1, *x.shape[1:])[:, i].reshape(-1, *x.shape[1:])
                                    for i in range(3)])
        if family.startswith("gemma") and target.endswith("norm"):
            x = x + np.float32(1)
        out[f"{target}.{kind}"] = np.ascontiguousarray(x)
    return out


def value(reader, key):
    field = reader.fields.get(key)
    return None if field is None else field.contents()


def check_tensors(path, folder):
    import gguf
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    want = expected(model)
    reader = gguf.GGUFReader(path)
    got = {t.name: t for t in reader.tensors}
    extra = {n for n in got if n.startswith("rope_f")}
    if sorted(set(got) - extra) != sorted(want):
        fail(f"{path}: tensors {sorted((set(got) - extra) ^ set(want))}")
    for name in set(got) - extra:
        x, t = want[name], got[name]
        if list(t.shape) != list(x.shape[::-1]):
            fail(f"{name}: {t.shape} instead of {x.shape[::-1]}")
        if gguf.quants.quantize(x, t.tensor_type).tobytes() != np.ascontiguousarray(t.data).tobytes():
            fail(f"{name}: other bytes than the gguf package makes")
    arch = value(reader, "general.architecture")
    known = {v[1] for v in gguf.get_tensor_name_map(
        next(a for a, n in gguf.MODEL_ARCH_NAMES.items() if n == arch), model.config.num_hidden_layers)
        .mapping.values()}
    for name in got:
        if name.rsplit(".", 1)[0] not in known | {"rope_factors_long", "rope_factors_short"}:
            fail(f"{name} is no tensor of {arch}")
    print(f"{path}: {arch}, {len(got)} tensors, bytes as the gguf package makes of transformers'")
    return model, reader


def check_tokens(reader, folder, llm):
    from transformers import PreTrainedTokenizerFast

    # Not AutoTokenizer: the classes of some families add tokens that no file has.
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    vocab = {i: t for t, i in tokenizer.get_vocab().items()}
    tokens, kinds = value(reader, "tokenizer.ggml.tokens"), value(reader, "tokenizer.ggml.token_type")
    for i, (token, kind) in enumerate(zip(tokens, kinds)):
        if i not in vocab and (token != f"[PAD{i}]" or kind != 5):
            fail(f"token {i}: {token!r}, type {kind}")
        if i in vocab and token != vocab[i]:
            fail(f"token {i}: {token!r} instead of {vocab[i]!r}")
    model = pathlib.Path(folder) / "tokenizer.model"
    if value(reader, "tokenizer.ggml.model") == "llama" and model.exists():
        import sentencepiece as sp

        truth = sp.SentencePieceProcessor(model_file=str(model))
        scores = value(reader, "tokenizer.ggml.scores")
        wrong = [i for i in range(truth.vocab_size()) if kinds[i] == 1 and len(tokens[i]) > 1
                 and scores[i] != truth.get_score(i)]
        print(f"scores: {len(wrong)} differ from tokenizer.model's")
    template = value(reader, "tokenizer.chat_template")
    if template != tokenizer.chat_template:
        fail(f"chat template {template!r}")
    bad = []
    steps = str(json.loads(tokenizer.backend_tokenizer.to_str())["pre_tokenizer"])
    for text in TEXTS:
        if "Metaspace" in steps and text.startswith(" "):
            continue  # llama.cpp puts a space before it, as the note of `snug convert` says
        a = tokenizer.encode(text)
        b = llm.tokenize(text.encode(), add_bos=True, special=True)
        if a != b:
            bad.append((text, a, b))
    for text, a, b in bad:
        print(f"ids of {text!r}: llama.cpp {b}, transformers {a}")
    if bad:
        fail(f"ids of {len(bad)} of {len(TEXTS)} texts")
    print(f"{len(tokens)} tokens, model {value(reader, 'tokenizer.ggml.model')}, "
          f"pre {value(reader, 'tokenizer.ggml.pre')}: ids of {len(TEXTS)} texts equal")
    return tokenizer


def open_llama(path, context=256, threads=2):
    import llama_cpp

    return llama_cpp.Llama(model_path=str(path), n_ctx=context, n_threads=threads, n_threads_batch=threads,
                           n_batch=512, logits_all=False, verbose=False, flash_attn=False,
                           type_k=llama_cpp.GGML_TYPE_F32, type_v=llama_cpp.GGML_TYPE_F32)


def logits_of(llm):
    import llama_cpp

    p = llama_cpp.llama_get_logits_ith(llm._ctx.ctx, -1)
    return np.ctypeslib.as_array(p, shape=(llm.n_vocab(),)).copy()


def greedy_llama(llm, ids, count):
    llm.reset()
    out, rows = [], []
    llm.eval(ids)
    for _ in range(count):
        rows.append(logits_of(llm))
        out.append(int(rows[-1].argmax()))
        llm.eval([out[-1]])
    return out, rows


def check_greedy(model, tokenizer, llm, count, prompts):
    import torch

    same, ties, worst = 0, 0, 0.0
    # ggml looks gelu up in a table of f16, and computes it by tanh where GPT-NeoX has erf.
    bound = 2e-3 if model.config.model_type in ("gpt_neox", "gpt2", "gemma", "gemma2", "gemma3_text") else 1e-4
    for text in prompts:
        ids = tokenizer.encode(text) or [tokenizer.bos_token_id]
        got, rows = greedy_llama(llm, ids, count)
        with torch.no_grad():
            logits = model(torch.tensor([ids + got])).logits[0, len(ids) - 1:-1].numpy()
        worst = max(worst, float(np.abs(np.stack(rows)[:, :logits.shape[1]] - logits).max() / np.abs(logits).max()))
        want = logits.argmax(-1).tolist()
        if want == got:
            same += 1
        else:
            k = next(i for i in range(count) if want[i] != got[i])
            top = np.sort(logits[k])[-2:]
            # Where both are that close, either may be the first.
            error = float(np.abs(rows[k][:logits.shape[1]] - logits[k]).max())
            tie = top[1] - top[0] <= 2 * error and error <= bound * np.abs(logits).max()
            ties += tie
            print(f"{text!r}: token {k} is {got[k]} in llama.cpp, {want[k]} in transformers; the best two "
                  f"differ by {top[1] - top[0]:.2e}, the two programs by {error:.2e}{': a tie' if tie else ''}")
    print(f"greedy text of {same} of {len(prompts)} prompts, {count} tokens each, equal to transformers', {ties} but "
          f"for ties; logits differ by {worst:.2e} of the largest")
    return same + ties == len(prompts) and worst <= bound


def compare_converter(path, folder, llama_cpp_folder, out):
    import gguf

    script = pathlib.Path(llama_cpp_folder) / "convert_hf_to_gguf.py"
    r = subprocess.run([sys.executable, str(script), str(folder), "--outfile", str(out), "--outtype", "f32"],
                       capture_output=True, text=True)
    if r.returncode != 0:
        print("convert_hf_to_gguf.py:", r.stderr.strip().splitlines()[-1])
        return
    ours, theirs = gguf.GGUFReader(path), gguf.GGUFReader(out)
    a, b = ({t.name: t for t in f.tensors} for f in (ours, theirs))
    for name in sorted(set(a) ^ set(b)):
        print(f"convert_hf_to_gguf.py: tensor {name} only in {'ours' if name in a else 'its file'}")
    bad = [n for n in set(a) & set(b) if not np.array_equal(a[n].data, b[n].data)]
    close = [n for n in bad if a[n].data.shape == b[n].data.shape and np.allclose(a[n].data, b[n].data, rtol=3e-7)]
    print(f"convert_hf_to_gguf.py: {len(set(a) & set(b)) - len(bad)} tensors equal byte for byte, {close} within an "
          f"ulp, {sorted(set(bad) - set(close))} differ")
    for key in sorted(set(ours.fields) | set(theirs.fields)):
        x, y = value(ours, key), value(theirs, key)
        if x != y and not key.startswith("GGUF."):
            print(f"  {key}: ours {str(x)[:70]!r}, its {str(y)[:70]!r}")


def check(path, folder, converter=None, count=32):
    import torch

    torch.set_num_threads(1)  # and one of llama.cpp: small models, and ggml waits busily
    model, reader = check_tensors(path, folder)
    llm = open_llama(path, threads=1)
    tokenizer = check_tokens(reader, folder, llm)
    good = check_greedy(model, tokenizer, llm, count, TEXTS)
    if converter:
        out = pathlib.Path(str(path) + ".theirs")
        compare_converter(path, folder, converter, out)
        out.unlink(missing_ok=True)
    return good


def speed(path, threads, tokens=64):
    llm = open_llama(path, 1024, threads)
    ids = llm.tokenize(("The river runs down to the sea. " * 40).encode())[:256]
    llm.reset()
    t = time.perf_counter()
    llm.eval(ids)
    logits_of(llm)
    prefill = len(ids) / (time.perf_counter() - t)
    t = time.perf_counter()
    for _ in range(tokens):
        llm.eval([int(logits_of(llm).argmax())])
    print(json.dumps({"prefill": prefill, "decode": tokens / (time.perf_counter() - t)}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for flag in ("--make", "--all", "--snug", "--check", "--model", "--converter", "--speed"):
        parser.add_argument(flag)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", nargs="*", default=[])
    a = parser.parse_args()
    if a.make:
        make(pathlib.Path(a.make), a.only)
    if a.check:
        sys.exit(0 if check(a.check, a.model, a.converter) else 1)
    if a.speed:
        speed(a.speed, a.threads)
    if a.all:
        root = pathlib.Path(a.all)
        if not a.make:
            make(root, [n for n in a.only or shapes() if not (root / n / "config.json").exists()])
        bad = []
        for name in a.only or shapes():
            print(f"--- {name}")
            path = root / f"{name}.gguf"
            r = subprocess.run([a.snug, "convert", "--model", str(root / name), "--to", "gguf", "--dtype", "f32",
                                "--output", str(path), "--overwrite"], capture_output=True, text=True)
            print(r.stdout.strip(), r.stderr.strip())
            if r.returncode != 0:
                bad.append(name)
                continue
            r = subprocess.run([sys.executable, __file__, "--check", str(path), "--model", str(root / name)]
                               + (["--converter", a.converter] if a.converter else []))
            bad += [name] if r.returncode else []
        print(f"{len(a.only or shapes()) - len(bad)} families good; not: {bad}")
        sys.exit(1 if bad else 0)
