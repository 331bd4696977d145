#!/usr/bin/env python3
"""nanoGPT's checkpoints as model folders and back. Needs torch and safetensors.

  tools/nanogpt.py out/ckpt.pt FOLDER       model=FOLDER then trains, evaluates and generates
  tools/nanogpt.py --back run1/final ckpt.pt

A GPT-2 without biases (bias=False) has them as zeros in the folder, which transformers opens as
GPT2LMHeadModel and which computes the same; "bias": false in config.json keeps them so in training.
Back, biases that are all zero are left out and model_args say bias=False. Linear weights are
(out, in) there and (in, out) in the folder, and its activation is the exact GELU
(activation_function: gelu).
"""
import json
import os
import sys

LINEAR = ("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")
BIASES = {"ln_1": 1, "attn.c_attn": 3, "attn.c_proj": 1, "ln_2": 1, "mlp.c_fc": 4, "mlp.c_proj": 1}


def refuse(expected, found, advice):
    sys.exit(f"usage: expected {expected}\n  found: {found}\n  try:   {advice}")


def to_folder(checkpoint, folder):
    import torch
    from safetensors.torch import save_file
    whole = torch.load(checkpoint, map_location="cpu", weights_only=True)
    if not isinstance(whole, dict) or "model" not in whole or "model_args" not in whole:
        refuse("a checkpoint of nanoGPT, with model and model_args", checkpoint, "out/ckpt.pt")
    args = whole["model_args"]
    tensors = {}
    for name, value in whole["model"].items():
        name = name.removeprefix("_orig_mod.")  # of torch.compile
        if name == "lm_head.weight" or name.endswith(".attn.bias"):  # tied; the causal mask
            continue
        value = value.t() if name.endswith(LINEAR) else value
        tensors[name] = value.float().contiguous().clone()
    c = args["n_embd"]
    layers = [f"transformer.h.{i}.{part}" for i in range(args["n_layer"]) for part in BIASES]
    for name in layers + ["transformer.ln_f"]:
        size = BIASES.get(name.split(".", 3)[-1], 1) * c
        tensors.setdefault(name + ".bias", torch.zeros(size))
    config = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2",
              "vocab_size": args["vocab_size"], "n_positions": args["block_size"],
              "n_embd": c, "n_layer": args["n_layer"], "n_head": args["n_head"],
              "activation_function": "gelu", "layer_norm_epsilon": 1e-5,
              "tie_word_embeddings": True}
    if not args.get("bias", True):
        config["bias"] = False
    for key in ("resid_pdrop", "embd_pdrop", "attn_pdrop"):
        config[key] = args.get("dropout", 0.0)
    os.makedirs(folder, exist_ok=False)
    save_file(tensors, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as out:
        json.dump(config, out, indent=2)


def back(folder, checkpoint):
    import torch
    from safetensors.torch import load_file
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as read:
        config = json.load(read)
    if config.get("model_type") != "gpt2" or config.get("activation_function") != "gelu":
        refuse("a GPT-2 whose activation_function is gelu, as nanoGPT's is", folder,
               "model.activation_function=gelu when it is trained")
    tensors = load_file(os.path.join(folder, "model.safetensors"))
    biases = [name for name in tensors if name.endswith(".bias")]
    has_bias = any(bool(tensors[name].any()) for name in biases)
    state = {}
    for name, value in tensors.items():
        if has_bias or not name.endswith(".bias"):
            state[name] = (value.t() if name.endswith(LINEAR) else value).contiguous().clone()
    state["lm_head.weight"] = state["transformer.wte.weight"]
    args = {"n_layer": config["n_layer"], "n_head": config["n_head"], "n_embd": config["n_embd"],
            "block_size": config["n_positions"], "vocab_size": config["vocab_size"],
            "bias": has_bias, "dropout": config.get("resid_pdrop", 0.0)}
    torch.save({"model": state, "model_args": args}, checkpoint)


if __name__ == "__main__":
    words = sys.argv[1:]
    if len(words) == 2:
        to_folder(*words)
    elif len(words) == 3 and words[0] == "--back":
        back(*words[1:])
    else:
        refuse("a checkpoint and a folder, or --back, a folder and a checkpoint", " ".join(words),
               "tools/nanogpt.py out/ckpt.pt FOLDER")
