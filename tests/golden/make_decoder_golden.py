#!/usr/bin/env python3
"""Writes decoder_<name>.safetensors: what the decoder families of transformers compute, in float64, on tiny random models.

    python3 make_decoder_golden.py           write every fixture next to this script
    python3 make_decoder_golden.py a d       write only these
    python3 make_decoder_golden.py --check   recompute and compare with the committed files (relative 1e-10)
    python3 make_decoder_golden.py --greedy  write decoder_greedy.json: how each model goes on, greedily

Parameters are drawn in float64, rounded to float32 and only then used in float64.
transformers computes the rotary angles, the RMS norms and the softmax in float32 whatever the model's type is; here its
own code runs with every float32 turned into float64 (InDouble), so that the truth is exact.

    name   class               L H G D C F V P                                                 T         what it is for
    a b    LlamaForCausalLM    2 4 2 6 24 40 97 32; 2 3 1 8 21 34 61 128                       14 19     G < H, untied; D apart from C / H, biases, llama3 angles
    c w    MistralForCausalLM  2 4 1 6 24 36 53 24; 2 4 2 8 22 30 59 16                        17 12     a window of 5, ignored targets, epsilon 1e-3; dynamic angles
    d v    Qwen2ForCausalLM    2 4 2 6 24 44 131 16; 2 3 1 8 24 28 43 64                       11 10     V just above 128; the second layer alone with a window, yarn with a given scale
    e i    Qwen3ForCausalLM    2 6 2 10 20 32 67 32; 2 4 2 6 22 30 51 32                       12 14     heads normed, ignored targets; biases, a window in the second layer, epsilon 1e-3
    f x    GemmaForCausalLM    2 3 1 12 20 48 73 16; 2 4 2 8 24 30 41 32                       13 9      1 + weight, embedding scale, gelu that means tanh; linear angles
    g h j  GPTNeoXForCausalLM  2 2 2 16 32 44 61 16; 2 4 4 6 24 38 59 15; 2 3 3 9 27 40 53 16  12 15 13  parallel, a quarter turns; sequential, T = P; tied, half turns, no biases in attention
    k l    Olmo2ForCausalLM    2 4 2 6 24 40 61 16; 2 3 1 8 20 28 71 16                        12 9      norms behind branches, of all heads as one row; biases, tied, epsilon 1e-3
    m n    Phi3ForCausalLM     2 4 2 8 32 44 67 64; 2 3 3 8 24 30 59 32                        15 13     fused tensors, three quarters turn, short factors, a window; long factors
    o p    SmolLM3ForCausalLM  3 4 2 6 24 36 57 16; 2 3 1 8 20 26 49 16                        12 10     a layer that does not turn; one that does not turn and has a window, biases
    q r    Gemma3ForCausalLM   3 4 2 10 24 36 67 32; 2 3 1 8 21 28 53 64                       14 11     sandwich norms, heads normed, two bases, windows of 5 in two layers of three; far layers linear
    s t    Gemma2ForCausalLM   2 4 2 10 24 36 67 16; 3 3 1 8 21 30 47 16                       13 9      scores and logits capped low, windows of 4; scores alone, ignored targets
    u      LlamaForCausalLM    2 4 2 8 32 40 61 64                                             15        yarn

Tensors and metadata as make_golden.py says; config_published is the config as published folders spell it, config as
transformers 5 writes it. Parameters stand under the names that save_pretrained writes. decoder_greedy.json:
prompt, the beginning of the first row, and tokens, what follows it, a token at a time without a cache.
"""

import json
import pathlib
import tempfile

import numpy as np
import torch
import transformers
from safetensors import safe_open
from torch.overrides import TorchFunctionMode

from make_golden import ADAMW, CLIP_NORM, FOLDER, IGNORED, STEPS, mean_loss, run_cases, train_adamw, versions


def rope_family(layers, heads, kv_heads, width, hidden, vocab, positions, **more):
    return {"num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads, "hidden_size": width,
            "intermediate_size": hidden, "vocab_size": vocab, "max_position_embeddings": positions,
            "attention_dropout": 0.0, **more}


def neox(layers, heads, width, hidden, vocab, positions, **more):
    return {"num_hidden_layers": layers, "num_attention_heads": heads, "hidden_size": width, "intermediate_size": hidden,
            "vocab_size": vocab, "max_position_embeddings": positions, "attention_dropout": 0.0, "hidden_dropout": 0.0,
            "classifier_dropout": 0.0, **more}


def case(seed, model, batch, tokens, config, ignore="none"):
    return {"seed": seed, "model": model, "B": batch, "T": tokens, "ignore": ignore, "config": config}


LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32}

# Configs are spelled as published folders spell them; transformers rewrites them and both spellings are kept.
CASES = {
    # two query heads share a key head; the head has its own weight
    "a": case(301, "LlamaForCausalLM", 2, 14,
              rope_family(2, 4, 2, 24, 40, 97, 32, rope_theta=10000.0, rms_norm_eps=1e-5, tie_word_embeddings=False)),
    # biases everywhere, D apart from C / H, angles kept, interpolated and divided: turns of 6.3, 20, 63, 199 around 8 and 32
    "b": case(302, "LlamaForCausalLM", 2, 19,
              rope_family(2, 3, 1, 21, 34, 61, 128, head_dim=8, rope_theta=100.0, rope_scaling=LLAMA3, rms_norm_eps=1e-5,
                          tie_word_embeddings=True, attention_bias=True, mlp_bias=True)),
    # a query sees itself and four before; one key head; an epsilon large enough to matter; ignored targets
    "c": case(303, "MistralForCausalLM", 3, 17,
              rope_family(2, 4, 1, 24, 36, 53, 24, rope_theta=1000.0, rms_norm_eps=1e-3, sliding_window=5,
                          tie_word_embeddings=False), ignore="some"),
    # biases on query, key and value only; V just above 128
    "d": case(304, "Qwen2ForCausalLM", 2, 11,
              rope_family(2, 4, 2, 24, 44, 131, 16, rope_theta=1000000.0, rms_norm_eps=1e-6, use_sliding_window=False,
                          sliding_window=16, max_window_layers=1, tie_word_embeddings=True)),
    # query and key normed per head before they turn; D apart from C / H; three heads a key head; ignored targets
    "e": case(305, "Qwen3ForCausalLM", 3, 12,
              rope_family(2, 6, 2, 20, 32, 67, 32, head_dim=10, rope_theta=1000.0, rms_norm_eps=1e-6, attention_bias=False,
                          tie_word_embeddings=True), ignore="some"),
    # norms scale by 1 + weight, embeddings by sqrt(C), tanh form of gelu whatever the published word; D apart from C / H
    "f": case(306, "GemmaForCausalLM", 2, 13,
              rope_family(2, 3, 1, 20, 48, 73, 16, head_dim=12, rope_theta=10000.0, rms_norm_eps=1e-6, hidden_act="gelu",
                          tie_word_embeddings=True)),
    # attention and MLP beside each other; a quarter of each head turns (4 of 16)
    "g": case(307, "GPTNeoXForCausalLM", 2, 12,
              neox(2, 2, 32, 44, 61, 16, rotary_pct=0.25, rotary_emb_base=100, use_parallel_residual=True, hidden_act="gelu",
                   layer_norm_eps=1e-5, tie_word_embeddings=False)),
    # one after the other; the whole head turns (6 of 6); T = P; ignored targets; an epsilon large enough to matter
    "h": case(308, "GPTNeoXForCausalLM", 3, 15,
              neox(2, 4, 24, 38, 59, 15, rotary_pct=1.0, rotary_emb_base=10000, use_parallel_residual=False, hidden_act="gelu",
                   layer_norm_eps=1e-3, tie_word_embeddings=False), ignore="some"),
    # heads normed and turned, the second layer alone with a window; biases of q, k, v and o; D apart from C / H
    "i": case(309, "Qwen3ForCausalLM", 2, 14,
              rope_family(2, 4, 2, 22, 30, 51, 32, head_dim=6, rope_theta=500.0, rms_norm_eps=1e-3, attention_bias=True,
                          use_sliding_window=True, sliding_window=4, max_window_layers=1, tie_word_embeddings=False)),
    # tied, half of each head turns, attention without biases
    "j": case(310, "GPTNeoXForCausalLM", 2, 13,
              neox(2, 3, 27, 40, 53, 16, rotary_pct=0.5, rotary_emb_base=1000, use_parallel_residual=True, hidden_act="gelu",
                   layer_norm_eps=1e-5, attention_bias=False, tie_word_embeddings=True)),
    # norms behind the branches alone, all queries and all keys normed as one row; two heads a key head
    "k": case(311, "Olmo2ForCausalLM", 2, 12,
              rope_family(2, 4, 2, 24, 40, 61, 16, rope_theta=500.0, rms_norm_eps=1e-6, tie_word_embeddings=False)),
    # D apart from C / H, one key head, biases, tied; ignored targets; an epsilon large enough to matter
    "l": case(312, "Olmo2ForCausalLM", 3, 9,
              rope_family(2, 3, 1, 20, 28, 71, 16, head_dim=8, rope_theta=10000.0, rms_norm_eps=1e-3, attention_bias=True,
                          tie_word_embeddings=True), ignore="some"),
    # q, k, v in one tensor, gate and up in another; three quarters of a head turn, the short factors; a window
    "m": case(313, "Phi3ForCausalLM", 2, 15,
              rope_family(2, 4, 2, 32, 44, 67, 64, rope_theta=1000.0, rms_norm_eps=1e-5, partial_rotary_factor=0.75,
                          original_max_position_embeddings=16, sliding_window=6, pad_token_id=None, tie_word_embeddings=False,
                          rope_scaling={"type": "longrope", "short_factor": [1.0, 1.1, 1.3], "long_factor": [1.5, 4.0, 9.0]})),
    # longer than the original length: the long factors; one head of all
    "n": case(314, "Phi3ForCausalLM", 2, 13,
              rope_family(2, 3, 3, 24, 30, 59, 32, rope_theta=10000.0, rms_norm_eps=1e-5, original_max_position_embeddings=8,
                          pad_token_id=None, tie_word_embeddings=True,
                          rope_scaling={"type": "longrope", "short_factor": [1.0, 1.0, 1.2, 1.4],
                                        "long_factor": [1.2, 2.0, 3.5, 4.0]})),
    # the second layer does not turn
    "o": case(315, "SmolLM3ForCausalLM", 2, 12,
              rope_family(3, 4, 2, 24, 36, 57, 16, rope_theta=1000.0, rms_norm_eps=1e-6, no_rope_layer_interval=2,
                          pad_token_id=0, tie_word_embeddings=True)),
    # what does not turn has a window; D apart from C / H; biases
    "p": case(316, "SmolLM3ForCausalLM", 3, 10,
              rope_family(2, 3, 1, 20, 26, 49, 16, head_dim=8, rope_theta=10000.0, rms_norm_eps=1e-3, no_rope_layers=[0, 1],
                          use_sliding_window=True, sliding_window=4, attention_bias=True, mlp_bias=True, pad_token_id=0,
                          tie_word_embeddings=False), ignore="some"),
    # norms before and behind the branches, heads normed, two bases; windows of two layers of three
    "q": case(317, "Gemma3ForCausalLM", 2, 14,
              rope_family(3, 4, 2, 24, 36, 67, 32, head_dim=10, rope_theta=5000.0, rope_local_base_freq=100.0, rms_norm_eps=1e-6,
                          hidden_activation="gelu_pytorch_tanh", query_pre_attn_scalar=20, sliding_window=5,
                          sliding_window_pattern=3, tie_word_embeddings=True)),
    # the same with the far layer first and its angles interpolated; one key head
    "r": case(318, "Gemma3ForCausalLM", 2, 11,
              rope_family(2, 3, 1, 21, 28, 53, 64, head_dim=8, rope_theta=1000.0, rope_local_base_freq=50.0, rms_norm_eps=1e-3,
                          hidden_activation="gelu_pytorch_tanh", query_pre_attn_scalar=8, sliding_window=3,
                          layer_types=["full_attention", "sliding_attention"],
                          rope_scaling={"rope_type": "linear", "factor": 4.0}, tie_word_embeddings=True)),
    # soft-capped scores and logits, low enough to matter; every other layer has a window
    "s": case(319, "Gemma2ForCausalLM", 2, 13,
              rope_family(2, 4, 2, 24, 36, 67, 16, head_dim=10, rope_theta=1000.0, rms_norm_eps=1e-6,
                          hidden_activation="gelu_pytorch_tanh", query_pre_attn_scalar=14, sliding_window=4,
                          attn_logit_softcapping=2.0, final_logit_softcapping=3.0, tie_word_embeddings=True)),
    # scores capped and logits not; three heads a key head; ignored targets
    "t": case(320, "Gemma2ForCausalLM", 3, 9,
              rope_family(3, 3, 1, 21, 30, 47, 16, head_dim=8, rope_theta=10000.0, rms_norm_eps=1e-3,
                          hidden_activation="gelu_pytorch_tanh", query_pre_attn_scalar=8, sliding_window=3,
                          attn_logit_softcapping=1.0, final_logit_softcapping=None, tie_word_embeddings=True), ignore="some"),
    # angles by yarn, its scale of sine and cosine; turns within 16 positions from 2.5 to 0.03 around 4 and 0.1
    "u": case(321, "LlamaForCausalLM", 2, 15,
              rope_family(2, 4, 2, 32, 40, 61, 64, rope_theta=100.0, rms_norm_eps=1e-5, tie_word_embeddings=False,
                          rope_scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16,
                                        "beta_fast": 2.0, "beta_slow": 0.2})),
    # the same with the scale given, whole pairs not; biases of q, k and v
    "v": case(322, "Qwen2ForCausalLM", 2, 10,
              rope_family(2, 3, 1, 24, 28, 43, 64, rope_theta=50.0, rms_norm_eps=1e-6, use_sliding_window=True, sliding_window=4,
                          max_window_layers=1, tie_word_embeddings=True,
                          rope_scaling={"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 32,
                                        "attention_factor": 1.25, "truncate": False})),
    # dynamic angles within the model's length: those of default; D apart from C / H
    "w": case(323, "MistralForCausalLM", 2, 12,
              rope_family(2, 4, 2, 22, 30, 59, 16, head_dim=8, rope_theta=1000.0, rms_norm_eps=1e-5, sliding_window=None,
                          tie_word_embeddings=False, rope_scaling={"rope_type": "dynamic", "factor": 2.0})),
    # angles interpolated; two heads a key head
    "x": case(324, "GemmaForCausalLM", 2, 9,
              rope_family(2, 4, 2, 24, 30, 41, 32, head_dim=8, rope_theta=100.0, rms_norm_eps=1e-3, hidden_act="gelu_pytorch_tanh",
                          tie_word_embeddings=True, rope_scaling={"rope_type": "linear", "factor": 2.0})),
}


class InDouble(TorchFunctionMode):
    """Every request for float32 becomes one for float64; no result may be of a smaller floating type."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        def widen(x):
            return torch.float64 if x is torch.float32 else x

        if function is torch.Tensor.float:
            function = torch.Tensor.double
        out = function(*map(widen, args), **{key: widen(x) for key, x in (kwargs or {}).items()})
        for x in out if isinstance(out, (tuple, list)) else (out,):
            assert not isinstance(x, torch.Tensor) or not x.is_floating_point() or x.dtype == torch.float64, (function, x.dtype)
        return out


def draw_parameter(name, shape, rng, offset):
    """Random numbers large enough that no term of the model is negligible."""
    noise = rng.standard_normal(shape)
    if "norm" in name:
        return (offset if name.endswith("weight") else 0.0) + 0.2 * noise
    if name.endswith("bias"):
        return 0.15 * noise
    return noise * 0.3


def build_model(spec):
    """The model in float64, its tensors as save_pretrained writes them, the config.json beside them, a float32 twin."""
    rng = np.random.default_rng(spec["seed"])
    family = getattr(transformers, spec["model"])
    single = family(family.config_class(**spec["config"], attn_implementation="eager"))
    with tempfile.TemporaryDirectory() as folder:
        single.save_pretrained(folder)
        with safe_open(pathlib.Path(folder) / "model.safetensors", framework="numpy") as file:
            names = sorted(file.keys())
        written = json.loads((pathlib.Path(folder) / "config.json").read_text())
    del written["transformers_version"]  # held by `versions`
    torch.set_default_dtype(torch.float64)
    with InDouble():
        model = family(family.config_class(**spec["config"], attn_implementation="eager"))
    torch.set_default_dtype(torch.float32)
    held = {name: "lm_head.weight" if name == "embed_out.weight" else name for name in names}  # GPT-NeoX renames on saving
    parameters = {name: model.get_parameter(held[name]) for name in names}
    assert {id(p) for p in parameters.values()} == {id(p) for p in model.parameters()}
    assert len(parameters) == len(list(model.parameters()))
    assert ("lm_head.weight" in names or "embed_out.weight" in names) != spec["config"]["tie_word_embeddings"]
    assert all(x.dtype == torch.float64 for x in [*model.parameters(), *model.buffers()] if x.is_floating_point())
    weights = {}
    with torch.no_grad():
        for name, parameter in parameters.items():
            offset = 0.0 if spec["model"].startswith("Gemma") else 1.0
            weights[name] = draw_parameter(name, tuple(parameter.shape), rng, offset).astype(np.float32)
            parameter.copy_(torch.from_numpy(weights[name]))
            single.get_parameter(held[name]).copy_(torch.from_numpy(weights[name]))
    model.train()  # dropout is zero, so this changes nothing but is how training runs
    check_angles(model, written)
    return model, parameters, weights, written, single, rng


def yarn_frequency(rope, frequency, turned):
    length, theta = rope["original_max_position_embeddings"], rope["rope_theta"]
    low, high = (turned * np.log(length / (turns * 2 * np.pi)) / (2 * np.log(theta))
                 for turns in (rope.get("beta_fast", 32.0), rope.get("beta_slow", 1.0)))
    if rope.get("truncate", True):
        low, high = np.floor(low), np.ceil(high)
    low, high = max(low, 0.0), min(high, turned - 1)
    ramp = np.clip((np.arange(turned // 2) - low) / (high - low), 0.0, 1.0)
    assert (ramp < 1).any() and (ramp > 0).any()
    return frequency / rope["factor"] * ramp + frequency * (1 - ramp)


def check_angles(model, config):
    """The inverse frequencies from their formulas, in numpy. What holds beyond the original length the loss alone shows."""
    ropes = config["rope_parameters"]
    embedding = model.base_model.rotary_emb
    for kind, rope in ropes.items() if "full_attention" in ropes else [(None, ropes)]:
        width = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        turned = int(width * rope.get("partial_rotary_factor", 1.0))
        frequency = rope["rope_theta"] ** (-np.arange(0, turned, 2) / turned)
        scale = 1.0
        if rope["rope_type"] == "llama3":
            length = rope["original_max_position_embeddings"]
            low, high = rope["low_freq_factor"], rope["high_freq_factor"]
            turns = length * frequency / (2 * np.pi)  # within the original window
            mix = np.clip((turns - low) / (high - low), 0.0, 1.0)
            assert (mix == 0).any() and (mix == 1).any() and ((mix > 0) & (mix < 1)).any()
            frequency = frequency * (mix + (1 - mix) / rope["factor"])
        elif rope["rope_type"] == "linear":
            frequency = frequency / rope["factor"]
        elif rope["rope_type"] == "yarn":
            frequency = yarn_frequency(rope, frequency, turned)
            scale = rope.get("attention_factor") or 0.1 * np.log(rope["factor"]) + 1
        elif rope["rope_type"] == "longrope":
            frequency = frequency / np.array(rope["short_factor"])
            length = rope["original_max_position_embeddings"]
            scale = np.sqrt(1 + np.log(config["max_position_embeddings"] / length) / np.log(length))
        else:
            assert rope["rope_type"] in ("default", "dynamic")
        name = f"{kind}_" if kind else ""
        np.testing.assert_allclose(getattr(embedding, name + "inv_freq").numpy(), frequency, rtol=1e-14)
        assert abs(getattr(embedding, name + "attention_scaling") - scale) < 1e-14


def draw_tokens(spec, config, rng):
    """Windows of T + 1 tokens, none of them the padding id: its embedding gets no gradient in transformers."""
    words = np.array([i for i in range(config.vocab_size) if i != config.pad_token_id])
    window = rng.choice(words, size=(spec["B"], spec["T"] + 1))
    inputs, targets = window[:, :-1].copy(), window[:, 1:].copy()
    if spec["ignore"] == "some":
        targets[rng.random(targets.shape) < 0.3] = IGNORED
        targets[0, 0] = IGNORED
        targets[0, -1] = IGNORED
        targets[-1, :] = IGNORED
    return torch.from_numpy(inputs), torch.from_numpy(targets)


@torch.no_grad()
def second_opinions(model, single, inputs, targets, logits, loss):
    """The library's own loss; its float32 model as it comes; what the future and the far past may not change."""
    with InDouble():
        own = model(input_ids=inputs, labels=targets, shift_labels=targets).loss
    assert own.dtype == torch.float64 and abs(own - loss) < 1e-12 * abs(loss), (own, loss)
    plain = single(input_ids=inputs).logits
    assert plain.dtype == torch.float32 and (plain - logits).abs().max() < 2e-5 * logits.abs().max()
    window = getattr(model.config, "sliding_window", None)
    with InDouble():
        kinds = set(getattr(model.config, "layer_types", None) or ["all"])
        if window is not None and len(kinds) == 1 and kinds != {"full_attention"}:
            model.config.sliding_window = None
            everything = model(input_ids=inputs).logits
            model.config.sliding_window = window
            change = (everything - logits).abs().amax(dim=(0, 2))
            assert change[:window].max() < 1e-12 and change[window:].min() > 1e-3 and len(change) > window
        half = inputs.shape[1] // 2
        original = getattr(model.config, "original_max_position_embeddings", None)
        if original is not None and inputs.shape[1] > original:  # by longrope the length chooses the angles
            half = max(half, original + 1)
        assert (model(input_ids=inputs[:, :half]).logits - logits[:, :half]).abs().max() < 1e-12 * logits.abs().max()


def compute(name):
    spec = CASES[name]
    model, parameters, weights, config, single, rng = build_model(spec)
    inputs, targets = draw_tokens(spec, model.config, rng)
    assert config["architectures"] == [spec["model"]]

    def loss_of_batch():
        with InDouble():
            return mean_loss(model(input_ids=inputs).logits, targets)

    with InDouble():
        logits = model(input_ids=inputs).logits
    loss = mean_loss(logits, targets)
    loss.backward()
    second_opinions(model, single, inputs, targets, logits, loss)

    tensors = dict(weights)
    for parameter_name, parameter in parameters.items():
        tensors["grad." + parameter_name] = parameter.grad.numpy().copy()
    tensors["input_ids"] = inputs.numpy()
    tensors["targets"] = targets.numpy()
    tensors["logits"] = logits.detach().numpy().copy()
    tensors["loss"] = np.array(loss.item())
    losses, norms = train_adamw(model, loss_of_batch)
    assert losses[0] == loss.item()
    tensors["adamw_losses"] = losses
    tensors["adamw_grad_norms"] = norms
    tensors["grad_norm"] = np.array(norms[0])

    published = {"architectures": [spec["model"]], "model_type": config["model_type"], **spec["config"]}
    metadata = {
        "format": "pt",
        "fixture": f"decoder_{name}",
        "config": json.dumps(config, sort_keys=True),
        "config_published": json.dumps(published, sort_keys=True),
        "adamw": json.dumps({**ADAMW, "clip_norm": CLIP_NORM, "steps": STEPS, "decay_min_rank": 2}, sort_keys=True),
        "trained_targets": str(int((targets != IGNORED).sum())),
        "seed": str(spec["seed"]),
        "versions": json.dumps(versions(), sort_keys=True),
    }
    return tensors, metadata


@torch.no_grad()
def greedy(name):
    """The beginning of the first row, and what follows it by the whole model run again for every token."""
    spec = CASES[name]
    model, _, _, _, _, rng = build_model(spec)
    model.eval()
    inputs, _ = draw_tokens(spec, model.config, rng)
    original = getattr(model.config, "original_max_position_embeddings", None)
    length = inputs.shape[1] // 2
    if original is not None and inputs.shape[1] > original:  # by longrope the length chooses the angles
        length = original + 1
    ids = inputs[:1, :length]
    for _ in range(min(6, model.config.max_position_embeddings - length)):
        with InDouble():
            logits = model(input_ids=ids).logits[0, -1]
        best = torch.topk(logits, 2)
        assert best.values[0] - best.values[1] > 1e-4 * logits.abs().max(), name
        ids = torch.cat([ids, best.indices[:1, None]], dim=1)
    return {"prompt": ids[0, :length].tolist(), "tokens": ids[0, length:].tolist()}


def write_greedy(names):
    texts = {name: greedy(name) for name in CASES}
    (FOLDER / "decoder_greedy.json").write_text(json.dumps(texts, indent=1) + "\n")


def main():
    run_cases(__doc__, CASES, "decoder", compute,
              instead={"--greedy": ("write decoder_greedy.json", write_greedy)})


if __name__ == "__main__":
    main()
