#!/usr/bin/env python3
"""Writes peft_<name>.safetensors: what PEFT's LoRA, DoRA and IA3 compute, in float64, on the models and batches of other fixtures.

    python3 make_peft_golden.py           write every fixture next to this script
    python3 make_peft_golden.py a d       write only these
    python3 make_peft_golden.py --check   recompute and compare with the committed files (relative 1e-10)

Needs peft beside what the other scripts need; not part of CI. Adapters are drawn in float64, A and B both,
rounded to float32 and only then used in float64.

    name  base       what it is for
    a     gpt2_a     transposed layers, all-linear, r 3, alpha 5
    b     gpt2_b     the defaults of PEFT and of the family; tied
    c     decoder_a  Llama, all-linear: queries, keys and values apart, gate and up; two query heads a key head; the head in modules_to_save
    d     decoder_b  three modules of one layer, patterns of ranks and alphas, rsLoRA; tied
    e     decoder_g  GPT-NeoX: rows head by head, bias: lora_only
    f     decoder_b  a regular expression, bias: all
    g     encoder_b  BERT: queries and values, the classifier beside them
    h     encoder_b  BERT, all-linear, the pooler's layer too
    i     gpt2_a     over a base in 4 bits: NF4, scales in codes; transposed layers, all-linear
    j     decoder_a  over NF4: three modules; queries, keys and values, gate and up are coded apart
    k     decoder_b  over NF4, scales in codes, all-linear; tied
    l     decoder_b  over FP4: three modules, bias: all
    m     encoder_b  over FP4, scales in codes: BERT, all-linear
    n     gpt2_a     DoRA: transposed layers, all-linear
    o     decoder_a  DoRA: Llama, some of the modules of a layer, rsLoRA, patterns of ranks; the head in modules_to_save
    p     encoder_b  DoRA: BERT, all-linear, the pooler's layer too
    q     decoder_g  DoRA: GPT-NeoX, rows head by head, bias: lora_only
    r     gpt2_a     DoRA over NF4, scales in codes
    s     gpt2_a     IA3, the defaults of the family; transposed
    t     decoder_b  IA3: keys, values and the projection behind the MLP
    u     encoder_b  IA3: BERT, keys, values, both projections as feed-forward
    v     decoder_g  IA3: GPT-NeoX, rows head by head, and what projections make
    w     decoder_a  IA3 over NF4: Llama
    x     gpt2_a     PiSSA, whose base is less than the model's: transposed, all-linear
    y     decoder_g  OLoRA, the same: GPT-NeoX, rows head by head
    z     decoder_b  PiSSA with rsLoRA, patterns of ranks and DoRA
    aa    gpt2_a     LoftQ over NF4, scales in codes; transposed, all-linear
    ab    decoder_b  LoRA on the table of tokens, tied to the head, and on queries
    ac    encoder_b  LoRA on BERT's table of tokens, beside positions, types and the norm behind
    ad    gpt2_a     LoRA on wte and all that has c_attn, rsLoRA
    ae    decoder_a  MiSS, whose rank divides no width: Llama, some of the modules of a layer
    af    encoder_b  MiSS: BERT, all-linear, the pooler's layer too
    ag    decoder_b  MiSS over NF4
    ah    decoder_a  LoRA-FA: A is not trained
    ai    decoder_f  LoRA on Gemma's table of tokens, which is scaled; tied
    aj    decoder_d  MiSS: Qwen2, bias: MiSS_only
    ak    gpt2_a     VeRA: transposed layers, all-linear, of several widths
    al    decoder_a  VeRA: Llama, some of the modules of a layer
    am    decoder_d  VeRA: Qwen2, bias: vera_only
    an    encoder_b  VeRA over NF4: BERT, all-linear
    ao    gpt2_a     prompt tuning: positions that are learned
    ap    decoder_a  prompt tuning: Llama
    aq    decoder_f  prompt tuning: Gemma, whose table is scaled; tied
    ar    decoder_b  prompt tuning over NF4
    as    gpt2_a     P-tuning: positions that are learned
    at    decoder_a  P-tuning: Llama, a width of its own inside
    au    decoder_f  P-tuning: Gemma, whose table is scaled; tied
    av    gpt2_a     prefix tuning: positions that are learned
    aw    decoder_a  prefix tuning: Llama, two query heads a key head
    ax    decoder_e  prefix tuning: Qwen3, norms of queries and keys
    ay    decoder_b  prefix tuning with prefix_projection, over NF4
    az    decoder_g  prefix tuning with prefix_projection: GPT-NeoX, rows head by head
    ea    gpt2_a     over a base in int8, LLM.int8(): transposed layers, all-linear
    eb    decoder_d  over int8 with outliers from 1.5 on: Qwen2; queries, keys and values, gate and up are coded apart
    ec    decoder_g  over int8: GPT-NeoX, rows head by head
    ed    encoder_b  over int8 without outliers: BERT, all-linear
    ee    decoder_d  DoRA over int8 with outliers from 2 on
    bg    decoder_c  prefix tuning: Mistral, whose window passes the prefix on (ba to bf: make_bottleneck_golden.py)
    bh    decoder_b  DoRA of a table: Qwen2, tied
    bi    encoder_b  DoRA of a table: BERT, whose op adds positions and types too
    bj    gpt2_a     DoRA of a table alone: GPT-2, with the scale of rsLoRA
    bk    decoder_f  DoRA of a table: Gemma, which scales what is read of it
    bl    gpt2_a     PiSSA of linear layers beside a table, which PEFT begins as any other
    bm    gpt2_a     P-tuning by an LSTM of two layers: GPT-2
    bn    decoder_a  by one of one layer: Llama
    bo    decoder_f  by one of three layers: Gemma
    bp    decoder_b  a single token by one, over NF4

Model and batch are those of the base. Tensors: what is trained under PEFT's names (F32), grad.<name>, logits,
loss, adamw_losses, adamw_grad_norms (F64). With virtual tokens logits begin with theirs, and the last of them is
asked for the first token, as by labels that PEFT is given; of a prefix they do not, and nothing is asked of it. What
an encoder makes, which PEFT saves in its place, is prompt_embeddings; the encoder's own tensors are
prompt_encoder.<name in PEFT's module>. Metadata: base, adapter_config (as PEFT writes it), adamw,
seed. Where A and B are made of the weights (x to aa), first.<name> and first_loss are what PEFT begins with. The script asserts that a new adapter leaves the base's loss as it is, and that the merged model has the
adapter's, both to 1e-12. Of i to m, r and w every linear weight of the blocks was replaced by what bitsandbytes decodes its
codes to (blocks of 64), before all else; base_loss is the loss then, snug_base_form says the codes. Of ea to ee these
weights are what its int8 codes decode to in backward, and in forward a product of codes: those of inputs are
bitsandbytes' own of each row, the rest of the arithmetic is in float64. bnb_loss is the loss of its arithmetic in
float32, where an outlier of one row takes its column out of the codes of all. Bases and seeds are ones where the first step's inputs
in float32, PyTorch's and but for ea Snug's, have the codes of those in float64: of one that lies by a boundary a code is one more or less, and what follows
differs by some 1e-5.
"""

import contextlib
import ctypes
import json
import os
import pathlib
import tempfile

import numpy as np
import peft
import torch
import transformers
from peft import IA3Config, LoraConfig, MissConfig, PrefixTuningConfig, PromptEncoderConfig, PromptTuningConfig, VeraConfig
from peft import get_peft_model, get_peft_model_state_dict
from peft.utils.loftq_utils import _low_rank_decomposition
from safetensors import safe_open

import make_decoder_golden as decoders
import make_encoder_golden as encoders
import make_golden as gpt2
from make_golden import ADAMW, CLIP_NORM, FOLDER, STEPS, mean_loss, run_cases, train_adamw, versions


def case(seed, base, task, four_bits=None, method=LoraConfig, first=None, **config):
    return {"seed": seed, "base": base, "task": task, "four_bits": four_bits, "method": method, "first": first, "config": config}


IN_FRONT = (PromptTuningConfig, PromptEncoderConfig, PrefixTuningConfig)  # methods of virtual tokens, which every sequence begins with

CASES = {
    # transposed layers; queries, keys and values in one module
    "a": case(401, "gpt2_a", "CAUSAL_LM", r=3, lora_alpha=5, target_modules="all-linear"),
    # the defaults of the family and of PEFT; tied
    "b": case(402, "gpt2_b", "CAUSAL_LM"),
    # queries, keys and values apart, and gate and up; two query heads share a key head; the head whole
    "c": case(403, "decoder_a", "CAUSAL_LM", r=2, lora_alpha=6, target_modules="all-linear",
              modules_to_save=["lm_head"]),
    # some of them, one layer, other ranks and alphas, the scale of rsLoRA
    "d": case(404, "decoder_b", "CAUSAL_LM", r=4, lora_alpha=3, target_modules=["q_proj", "v_proj", "down_proj"], use_rslora=True,
              rank_pattern={"v_proj": 2}, alpha_pattern={"down_proj": 7}, layers_to_transform=[1]),
    # rows of queries, keys and values head by head; biases of adapted modules
    "e": case(405, "decoder_g", "CAUSAL_LM", r=5, target_modules=["query_key_value", "dense"], bias="lora_only"),
    # a regular expression, all biases
    "f": case(406, "decoder_b", "CAUSAL_LM", r=3, target_modules=r".*\.0\..*(q|k|v|o)_proj", bias="all"),
    # an encoder: queries and values; the classifier is trained beside them
    "g": case(407, "encoder_b", "SEQ_CLS", r=4, lora_alpha=8, target_modules=["query", "value"]),
    # all of it, the dense layer of the head too
    "h": case(408, "encoder_b", "SEQ_CLS", r=2, lora_alpha=5, target_modules="all-linear"),
    # over a base in 4 bits: its linear weights are what bitsandbytes decodes their codes to
    "i": case(409, "gpt2_a", "CAUSAL_LM", four_bits="nf4-double", r=3, lora_alpha=5, target_modules="all-linear"),
    "j": case(410, "decoder_a", "CAUSAL_LM", four_bits="nf4", r=2, lora_alpha=6, target_modules=["q_proj", "v_proj", "up_proj"]),
    "k": case(411, "decoder_b", "CAUSAL_LM", four_bits="nf4-double", r=3, lora_alpha=4, target_modules="all-linear"),
    "l": case(412, "decoder_b", "CAUSAL_LM", four_bits="fp4", r=2, target_modules=["q_proj", "o_proj", "down_proj"], bias="all"),
    "m": case(413, "encoder_b", "SEQ_CLS", four_bits="fp4-double", r=2, lora_alpha=5, target_modules="all-linear"),
    "n": case(414, "gpt2_a", "CAUSAL_LM", use_dora=True, r=3, lora_alpha=5, target_modules="all-linear"),
    "o": case(415, "decoder_a", "CAUSAL_LM", use_dora=True, r=2, lora_alpha=3, use_rslora=True, rank_pattern={"v_proj": 3},
              target_modules=["q_proj", "v_proj", "o_proj", "up_proj", "down_proj"], modules_to_save=["lm_head"]),
    "p": case(416, "encoder_b", "SEQ_CLS", use_dora=True, r=2, lora_alpha=5, target_modules="all-linear"),
    "q": case(417, "decoder_g", "CAUSAL_LM", use_dora=True, r=3, target_modules=["query_key_value", "dense"], bias="lora_only"),
    "r": case(418, "gpt2_a", "CAUSAL_LM", four_bits="nf4-double", use_dora=True, r=3, target_modules="all-linear"),
    "s": case(419, "gpt2_a", "CAUSAL_LM", method=IA3Config),
    "t": case(420, "decoder_b", "CAUSAL_LM", method=IA3Config, target_modules=["k_proj", "v_proj", "down_proj"],
              feedforward_modules=["down_proj"]),
    "u": case(421, "encoder_b", "SEQ_CLS", method=IA3Config, target_modules=["key", "value", "output.dense"],
              feedforward_modules=["output.dense"]),
    "v": case(422, "decoder_g", "CAUSAL_LM", method=IA3Config, target_modules=["query_key_value", "dense", "dense_4h_to_h"],
              feedforward_modules=["dense_4h_to_h"]),
    "w": case(423, "decoder_a", "CAUSAL_LM", four_bits="nf4", method=IA3Config, target_modules="all-linear",
              feedforward_modules=["down_proj"]),
    "x": case(424, "gpt2_a", "CAUSAL_LM", r=3, lora_alpha=5, target_modules="all-linear", init_lora_weights="pissa"),
    "y": case(425, "decoder_g", "CAUSAL_LM", r=2, lora_alpha=3, target_modules=["query_key_value", "dense"],
              init_lora_weights="olora"),
    "z": case(426, "decoder_b", "CAUSAL_LM", use_dora=True, r=4, lora_alpha=3, use_rslora=True, rank_pattern={"v_proj": 2},
              target_modules=["q_proj", "v_proj", "down_proj"], init_lora_weights="pissa"),
    "aa": case(427, "gpt2_a", "CAUSAL_LM", four_bits="nf4-double", first="loftq", r=3, lora_alpha=5, target_modules="all-linear"),
    "ab": case(428, "decoder_b", "CAUSAL_LM", r=3, lora_alpha=4, target_modules=["embed_tokens", "q_proj"]),
    "ac": case(429, "encoder_b", "SEQ_CLS", r=2, lora_alpha=5, target_modules=["word_embeddings", "query"]),
    "ad": case(430, "gpt2_a", "CAUSAL_LM", r=3, lora_alpha=2, use_rslora=True, target_modules=["wte", "c_attn"]),
    "ae": case(431, "decoder_a", "CAUSAL_LM", method=MissConfig, r=5, target_modules=["q_proj", "v_proj", "o_proj", "up_proj"],
               layers_to_transform=[1]),
    "af": case(432, "encoder_b", "SEQ_CLS", method=MissConfig, r=4, target_modules="all-linear"),
    "ag": case(433, "decoder_b", "CAUSAL_LM", four_bits="nf4", method=MissConfig, r=3, target_modules=["k_proj", "down_proj"]),
    "ai": case(435, "decoder_f", "CAUSAL_LM", r=3, lora_alpha=2, target_modules=["embed_tokens", "v_proj"]),
    "aj": case(436, "decoder_d", "CAUSAL_LM", method=MissConfig, r=3, target_modules=["q_proj", "k_proj", "v_proj"], bias="MiSS_only"),
    "ak": case(437, "gpt2_a", "CAUSAL_LM", method=VeraConfig, r=7, target_modules="all-linear", projection_prng_key=11),
    "al": case(438, "decoder_a", "CAUSAL_LM", method=VeraConfig, r=5, target_modules=["q_proj", "v_proj", "o_proj", "up_proj", "down_proj"]),
    "am": case(439, "decoder_d", "CAUSAL_LM", method=VeraConfig, r=6, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"],
               bias="vera_only"),
    "an": case(440, "encoder_b", "SEQ_CLS", four_bits="nf4", method=VeraConfig, r=4, target_modules="all-linear"),
    "ao": case(441, "gpt2_a", "CAUSAL_LM", method=PromptTuningConfig, num_virtual_tokens=3),
    "ap": case(442, "decoder_a", "CAUSAL_LM", method=PromptTuningConfig, num_virtual_tokens=4),
    "aq": case(443, "decoder_f", "CAUSAL_LM", method=PromptTuningConfig, num_virtual_tokens=2),
    "ar": case(444, "decoder_b", "CAUSAL_LM", four_bits="nf4", method=PromptTuningConfig, num_virtual_tokens=3),
    "as": case(445, "gpt2_a", "CAUSAL_LM", method=PromptEncoderConfig, num_virtual_tokens=3),
    "at": case(446, "decoder_a", "CAUSAL_LM", method=PromptEncoderConfig, num_virtual_tokens=4, encoder_hidden_size=10),
    "au": case(447, "decoder_f", "CAUSAL_LM", method=PromptEncoderConfig, num_virtual_tokens=2, encoder_hidden_size=6),
    "av": case(448, "gpt2_a", "CAUSAL_LM", method=PrefixTuningConfig, num_virtual_tokens=3),
    "aw": case(449, "decoder_a", "CAUSAL_LM", method=PrefixTuningConfig, num_virtual_tokens=4),
    "ax": case(450, "decoder_e", "CAUSAL_LM", method=PrefixTuningConfig, num_virtual_tokens=2),
    "ay": case(451, "decoder_b", "CAUSAL_LM", four_bits="nf4", method=PrefixTuningConfig, num_virtual_tokens=3, prefix_projection=True,
               encoder_hidden_size=5),
    "az": case(452, "decoder_g", "CAUSAL_LM", method=PrefixTuningConfig, num_virtual_tokens=3, prefix_projection=True),
    "bg": case(453, "decoder_c", "CAUSAL_LM", method=PrefixTuningConfig, num_virtual_tokens=3),
    "bh": case(454, "decoder_b", "CAUSAL_LM", use_dora=True, r=3, lora_alpha=4, target_modules=["embed_tokens", "q_proj"]),
    "bi": case(465, "encoder_b", "SEQ_CLS", use_dora=True, r=2, lora_alpha=5, target_modules=["word_embeddings", "query"]),
    "bj": case(456, "gpt2_a", "CAUSAL_LM", use_dora=True, r=3, lora_alpha=2, use_rslora=True, target_modules=["wte"]),
    "bk": case(457, "decoder_f", "CAUSAL_LM", use_dora=True, r=3, lora_alpha=2, target_modules=["embed_tokens", "v_proj"]),
    "bl": case(458, "gpt2_a", "CAUSAL_LM", r=3, lora_alpha=5, target_modules=["wte", "c_attn"], init_lora_weights="pissa"),
    "bm": case(459, "gpt2_a", "CAUSAL_LM", method=PromptEncoderConfig, num_virtual_tokens=3, encoder_hidden_size=5,
               encoder_reparameterization_type="LSTM"),
    "bn": case(460, "decoder_a", "CAUSAL_LM", method=PromptEncoderConfig, num_virtual_tokens=4, encoder_hidden_size=8,
               encoder_num_layers=1, encoder_reparameterization_type="LSTM"),
    "bo": case(461, "decoder_f", "CAUSAL_LM", method=PromptEncoderConfig, num_virtual_tokens=5, encoder_hidden_size=3,
               encoder_num_layers=3, encoder_reparameterization_type="LSTM"),
    "bp": case(462, "decoder_b", "CAUSAL_LM", four_bits="nf4", method=PromptEncoderConfig, num_virtual_tokens=1, encoder_hidden_size=4,
               encoder_reparameterization_type="LSTM"),
    "ea": case(501, "gpt2_a", "CAUSAL_LM", four_bits="int8", r=3, lora_alpha=5, target_modules="all-linear"),
    "eb": case(502, "decoder_d", "CAUSAL_LM", four_bits="int8:1.5", r=2, lora_alpha=6, target_modules=["q_proj", "v_proj", "up_proj"]),
    "ec": case(503, "decoder_g", "CAUSAL_LM", four_bits="int8", r=3, target_modules=["query_key_value", "dense"], bias="lora_only"),
    "ed": case(504, "encoder_b", "SEQ_CLS", four_bits="int8:0", r=2, lora_alpha=5, target_modules="all-linear"),
    "ee": case(505, "decoder_d", "CAUSAL_LM", four_bits="int8:2", use_dora=True, r=3, target_modules=["q_proj", "o_proj", "down_proj"]),
    "ah": case(434, "decoder_a", "CAUSAL_LM", first="fa", r=2, lora_alpha=6, target_modules="all-linear"),
}


def draw(name, shape, rng, value=None):
    """Adapters large enough that they matter beside the weights; scales about what they are."""
    if "magnitude" in name or "ia3_l" in name:
        return (value.numpy() * (1 + 0.15 * rng.standard_normal(shape))).astype(np.float32)
    if "mlp_head" in name or "transform" in name:
        return (rng.standard_normal(shape) * 0.3).astype(np.float32)
    if "prompt_encoder" in name:
        return (rng.standard_normal(shape) * 0.5).astype(np.float32)
    return (rng.standard_normal(shape) * (0.15 if "lora_" in name or "miss_" in name else 0.2)).astype(np.float32)


def base_of(name):
    """The model in float64, its loss as a function, and the mode that it runs in."""
    kind, letter = name.split("_")
    inputs = targets = None
    if kind == "gpt2":
        model, weights, inputs, targets, packed = gpt2.build_model(gpt2.CASES[letter])
        run = lambda wrapped: wrapped(input_ids=inputs, **packed).logits
        loss = lambda logits: mean_loss(logits, targets)
        mode = contextlib.nullcontext
    elif kind == "decoder":
        spec = decoders.CASES[letter]
        model, _, weights, _, _, rng = decoders.build_model(spec)
        inputs, targets = decoders.draw_tokens(spec, model.config, rng)
        run = lambda wrapped: wrapped(input_ids=inputs).logits
        loss = lambda logits: mean_loss(logits, targets)
        mode = decoders.InDouble
    else:
        spec = encoders.CASES[letter]
        model, _, weights, _, rng = encoders.build_model(spec)
        rows, labels = encoders.draw_rows(spec, model.config, rng)
        run = lambda wrapped: encoders.forward(wrapped, rows, spec["task"])
        loss = lambda logits: encoders.mean_loss(logits, labels)
        mode = contextlib.nullcontext
    with safe_open(FOLDER / f"{name}.safetensors", framework="numpy") as file:
        for key, value in weights.items():
            assert (file.get_tensor(key) == value).all(), key
        truth = float(file.get_tensor("loss"))
    return model, run, loss, mode, truth, (inputs, targets)


def loss_in_front(n, inputs, targets):
    """Behind n virtual tokens: the last of them is asked for the first token."""
    nothing = torch.full((len(inputs), n - 1), gpt2.IGNORED)
    longer = torch.cat([nothing, inputs[:, :1], targets], dim=1)
    return lambda logits: mean_loss(logits, longer)


def check_labels(wrapped, n, inputs, targets, logits):
    """That PEFT's own labels say the same, of what it shifts itself and rounds to float32."""
    shifted = torch.cat([inputs[:, :1], targets[:, :-1]], dim=1)
    theirs = wrapped(input_ids=inputs, labels=shifted).loss.item()
    last = targets.clone()
    last[:, -1] = gpt2.IGNORED
    own = loss_in_front(n, inputs, last)(logits).item()
    assert abs(theirs - own) < 1e-6 * own, (theirs, own)


def reference_functions():
    """bitsandbytes without its library, as make_quant_golden.py has it: the loop for the CPU is coarser in 8-bit scales."""

    def no_library(path):
        raise OSError(f"{path}: the reference functions are wanted")

    load, ctypes.cdll.LoadLibrary = ctypes.cdll.LoadLibrary, no_library
    os.environ["TORCHDYNAMO_DISABLE"] = "1"
    try:
        from bitsandbytes import functional
    finally:
        ctypes.cdll.LoadLibrary = load
    return functional


def rest_in_four_bits(model, form):
    """Linear weights of the blocks, as float32, to what bitsandbytes makes of them; transposed ones as transformers turns
    them before."""
    functional = reference_functions()
    codec, doubled = form.split("-")[0], form.endswith("-double")
    lost = {}
    for name, module in model.named_modules():
        turned = isinstance(module, transformers.pytorch_utils.Conv1D)
        if not (turned or isinstance(module, torch.nn.Linear)) or name.split(".")[0] in ("lm_head", "classifier", "score"):
            continue
        if "pooler" in name or "pre_classifier" in name:  # a head's, not a block's
            continue
        weight = module.weight.data.float()
        weight = (weight.t() if turned else weight).contiguous()
        # As one row, whose blocks may end inside a row of the weight.
        codes, state = functional.quantize_4bit(weight.flatten(), blocksize=64, compress_statistics=doubled, quant_type=codec)
        decoded = functional.dequantize_4bit(codes, state).double().reshape(weight.shape)
        assert (decoded - weight).abs().max() < 0.2 * weight.abs().max(), name
        module.weight.data = (decoded.t() if turned else decoded).contiguous().to(module.weight.dtype)
        lost[name] = weight.double() - decoded
    assert lost
    return lost


class Int8Product(torch.autograd.Function):
    """MatMul8bitLt in the dtype of x, but that every row has the outliers that it has as a matrix of its own."""

    seen = None  # codes of inputs, if a list

    @staticmethod
    def forward(ctx, x, codes, scales, bias, threshold):
        from bitsandbytes import functional

        ctx.codes, ctx.scales = codes, scales
        rows = x.detach().reshape(-1, x.shape[-1])
        out = []
        with torch._C.DisableTorchFunction():  # a mode that keeps all in float64
            for row in rows:
                row = row[None]
                q, peak, columns = functional.int8_vectorwise_quant(row.half(), threshold)
                if Int8Product.seen is not None:
                    Int8Product.seen.append(q)
                y = (q.double() @ codes.double().t()) * (peak.double()[:, None] * scales.double()) / 127**2
                if bias is not None:
                    y += bias.double()
                if columns is not None and len(columns):
                    y += row[:, columns].double() @ (codes[:, columns].double() * scales.double()[:, None] / 127).t()
                out.append(y.to(x.dtype))
            return torch.cat(out).reshape(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx, dy):
        weight = ctx.codes.to(dy.dtype) * ctx.scales.to(dy.dtype)[:, None] / 127
        return dy @ weight, None, None, dy.reshape(-1, dy.shape[-1]).sum(0) if ctx.needs_input_grad[3] else None, None


class AsBitsandbytes:
    """All rows of a matrix at once, as its MatMul8bitLt does in float32, with the constant of its CUDA kernel: that of its loop
    for the CPU is 1.8e-5 larger, which moves codes of the layers behind."""

    def __enter__(self):
        from bitsandbytes import functional

        def apply(x, codes, scales, bias, threshold):
            with torch._C.DisableTorchFunction():
                a = x.float().reshape(-1, x.shape[-1])
                q, peaks, columns = functional.int8_vectorwise_quant(a.half(), threshold)
                y = functional.int8_linear_matmul(q, codes) * (peaks[:, None] * scales) * 6.200012e-05
                if bias is not None:
                    y += bias.float()
                if columns is not None and len(columns):
                    y = y.addmm(a[:, columns], functional.int8_vectorwise_dequant(codes[:, columns].contiguous(), scales).t())
                return y.reshape(*x.shape[:-1], -1).to(x.dtype)

        self.own, Int8Product.apply = Int8Product.apply, apply

    def __exit__(self, *error):
        Int8Product.apply = self.own


def rest_in_int8(model, form):
    """Linear weights of the blocks to what their codes decode to, and their products to those of codes."""
    from bitsandbytes import functional

    threshold = float(form.split(":")[1]) if ":" in form else 6.0
    for name, module in model.named_modules():
        turned = isinstance(module, transformers.pytorch_utils.Conv1D)
        if not (turned or isinstance(module, torch.nn.Linear)) or name.split(".")[0] in ("lm_head", "classifier", "score"):
            continue
        if "pooler" in name or "pre_classifier" in name:
            continue
        weight = module.weight.data.float()
        weight = (weight.t() if turned else weight).contiguous()
        codes, scales, _ = functional.int8_vectorwise_quant(weight.half())
        decoded = codes.double() * scales.double()[:, None] / 127
        assert (decoded - weight).abs().max() < 0.02 * weight.abs().max(), name
        module.weight.data = (decoded.t() if turned else decoded).contiguous().to(module.weight.dtype)
        module.forward = lambda x, m=module, c=codes, s=scales: Int8Product.apply(x, c, s, getattr(m, "bias", None), threshold)


def codes_in(kind, wrapped, loss_of_batch):
    """The codes of all inputs with weights of a dtype."""
    Int8Product.seen, kept = [], {parameter: parameter.data for parameter in wrapped.parameters()}
    with torch.no_grad():
        for parameter, value in kept.items():
            parameter.data = value.to(kind)
        loss_of_batch()
        for parameter, value in kept.items():
            parameter.data = value
    seen, Int8Product.seen = Int8Product.seen, None
    return torch.cat([q.flatten() for q in seen])


class InitsInDouble:
    """PEFT's first weights are made in float32: the same code in float64."""

    class Torch:
        float32 = torch.float64

        def __getattr__(self, name):
            return getattr(torch, name)

    def __enter__(self):
        peft.tuners.lora.layer.torch = self.Torch()

    def __exit__(self, *error):
        peft.tuners.lora.layer.torch = torch


def compute(name):
    spec = CASES[name]
    rng = np.random.default_rng(spec["seed"])
    model, run, loss_of, mode, truth, batch = base_of(spec["base"])
    front = spec["method"] in IN_FRONT
    prefix = spec["method"] is PrefixTuningConfig
    if spec["four_bits"]:
        if spec["four_bits"].startswith("int8"):
            rest_in_int8(model, spec["four_bits"])
        else:
            lost = rest_in_four_bits(model, spec["four_bits"])
    turned = {} if front or spec["method"] is MissConfig else {"fan_in_fan_out": spec["base"].startswith("gpt2")}
    if spec["method"] is VeraConfig:
        turned["save_projection"] = False
    config = spec["method"](task_type=spec["task"], **turned, **spec["config"])
    made = str(spec["config"].get("init_lora_weights", True)) not in ("True", "gaussian")  # of the weights
    with InitsInDouble() if made else contextlib.nullcontext():
        wrapped = get_peft_model(model, config).double()
    wrapped.train()
    if spec["first"] == "loftq":  # as replace_lora_weights_loftq has it, of weights that it reads from a file
        for name, module in wrapped.named_modules():
            key = name.removeprefix("base_model.model.")
            if key in lost and hasattr(module, "lora_A"):
                parts = _low_rank_decomposition(lost[key], module.r["default"])
                module.lora_A["default"].weight.data, module.lora_B["default"].weight.data = parts["R"].double(), parts["L"].double()
    if front:
        with mode():
            lost_by_codes = loss_of(run(model)).item() if spec["four_bits"] else None
        if not prefix:
            loss_of = loss_in_front(spec["config"]["num_virtual_tokens"], *batch)
    with mode():
        fresh = loss_of(run(wrapped)).item()
    if front:
        fresh = lost_by_codes
    elif spec["four_bits"]:
        assert abs(fresh - truth) > 1e-5 * abs(truth), (fresh, truth)
    else:
        assert abs(fresh - truth) < 1e-12 * abs(truth), (fresh, truth)  # a new adapter changes nothing

    still = {}
    if spec["first"] == "fa":
        for key, parameter in wrapped.named_parameters():
            if "lora_A" in key:
                still[key] = parameter.requires_grad_(False)
    trained = {key: value for key, value in wrapped.named_parameters() if value.requires_grad}
    values, begun = {}, {}
    with torch.no_grad():
        for key, parameter in trained.items():
            if (made or spec["first"] == "loftq") and "lora_" in key:
                begun[key] = parameter.numpy().astype(np.float32)
        for key, parameter in trained.items():
            values[key] = draw(key, tuple(parameter.shape), rng, parameter)
            parameter.copy_(torch.from_numpy(values[key]))
        for key, parameter in still.items():
            parameter.copy_(torch.from_numpy(draw(key, tuple(parameter.shape), rng)))

    def loss_of_batch():
        with mode():
            return loss_of(run(wrapped))

    with mode():
        logits = run(wrapped)
    loss = loss_of(logits)
    loss.backward()
    if front and not prefix:
        with mode():
            check_labels(wrapped, spec["config"]["num_virtual_tokens"], *batch, logits)

    # Under the names of PEFT's files, as it writes them.
    saved = get_peft_model_state_dict(wrapped, save_embedding_layers=False)  # else with a table that has an adapter
    name_of = {}
    encoded = front and len(trained) > 1
    if encoded:
        assert list(saved) == ["prompt_embeddings"]
        name_of = {key: key.replace(".default", "") for key in trained}
    for key, parameter in ({} if encoded else trained).items():
        found = [other for other, value in saved.items() if value.data_ptr() == parameter.data_ptr()]
        if front:  # a copy
            found = [other for other, value in saved.items() if torch.equal(value, parameter.detach())]
        assert len(found) == 1, (key, found)
        name_of[key] = found[0]
    assert encoded or len(saved) == len(trained) + len(still)
    tensors = {name_of[key]: value for key, value in values.items()}
    for key, parameter in trained.items():
        tensors["grad." + name_of[key]] = parameter.grad.numpy().copy()
    if encoded:
        tensors["prompt_embeddings"] = saved["prompt_embeddings"].numpy().astype(np.float32)
    for key, value in saved.items():
        if any(value.data_ptr() == parameter.data_ptr() for parameter in still.values()):
            tensors[key] = value.numpy().astype(np.float32)
    for key, value in begun.items():
        tensors["first." + name_of[key]] = value
    if begun:
        tensors["first_loss"] = np.array(fresh)
    tensors["logits"] = logits.detach().numpy().copy()
    tensors["loss"] = np.array(loss.item())
    if spec["four_bits"]:
        tensors["base_loss"] = np.array(fresh)
    with tempfile.TemporaryDirectory() as folder:
        wrapped.save_pretrained(folder)
        written = json.loads((pathlib.Path(folder) / "adapter_config.json").read_text())
    for key in ("target_modules", "modules_to_save", "feedforward_modules"):
        if isinstance(written.get(key), list):
            written[key].sort()
    int8 = (spec["four_bits"] or "").startswith("int8")
    if int8:
        with AsBitsandbytes(), torch.no_grad():
            tensors["bnb_loss"] = np.array(loss_of_batch().item())
        print(name, "bnb_loss", float(tensors["bnb_loss"]), "loss", loss.item(), flush=True)

        of_double, of_float = (codes_in(kind, wrapped, loss) for kind, loss in (
            (torch.float64, loss_of_batch), (torch.float32, lambda: loss_of(run(wrapped)))))
        other = (of_double != of_float).sum().item()
        assert other == 0, (name, other, of_double.numel())
    losses, norms = train_adamw(TrainedAlone(trained), loss_of_batch)
    assert losses[0] == loss.item()
    tensors["adamw_losses"] = losses
    tensors["adamw_grad_norms"] = norms
    if not front and not int8:
        check_merged(wrapped, model, trained, loss_of_batch, run, loss_of, mode)

    metadata = {
        "format": "pt",
        "fixture": f"peft_{name}",
        "base": spec["base"],
        "adapter_config": json.dumps(written, sort_keys=True),
        "adamw": json.dumps({**ADAMW, "clip_norm": CLIP_NORM, "steps": STEPS, "decay_min_rank": 2}, sort_keys=True),
        "seed": str(spec["seed"]),
        "versions": json.dumps({**versions(), "peft": peft.__version__}, sort_keys=True),
    }
    if spec["first"]:
        metadata["first"] = spec["first"]
    if spec["four_bits"]:
        import bitsandbytes

        metadata["snug_base_form"] = spec["four_bits"]
        metadata["versions"] = json.dumps({**json.loads(metadata["versions"]), "bitsandbytes": bitsandbytes.__version__}, sort_keys=True)
    return tensors, metadata


@torch.no_grad()
def check_merged(wrapped, model, trained, loss_of_batch, run, loss_of, mode):
    """The same model without adapters."""
    before = loss_of_batch().item()
    merged = wrapped.merge_and_unload()
    with mode():
        after = loss_of(run(merged)).item()
    # Of a tied table PEFT changes the head with it.
    tied = model.config.tie_word_embeddings and any("lora_embedding" in key for key in trained)
    assert tied or abs(after - before) < 1e-12 * abs(before), (after, before)


class TrainedAlone:
    """What train_adamw asks of a model."""

    def __init__(self, trained):
        self.trained = trained

    def parameters(self):
        return self.trained.values()


def main():
    run_cases(__doc__, CASES, "peft", compute, floor=1e-6)


if __name__ == "__main__":
    main()
