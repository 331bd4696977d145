"""tools/nanogpt.py against the network of nanoGPT, written out here: logits and a run that goes on.

  nanogpt_check.py SNUG NANOGPT.PY     77 without torch and safetensors
"""
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile

try:
    import torch
    from safetensors.torch import load_file, save_file
    from torch.nn.functional import cross_entropy, gelu, layer_norm, scaled_dot_product_attention
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

snug, script = sys.argv[1:3]
V, T, C, L, H = 60, 16, 24, 2, 3


def logits(p, bias, ids):
    def linear(x, name):
        return x @ p[name + ".weight"].t() + (p[name + ".bias"] if bias else 0)

    def norm(x, name):
        return layer_norm(x, (C,), p[name + ".weight"], p[name + ".bias"] if bias else None, 1e-5)

    x = p["transformer.wte.weight"][ids] + p["transformer.wpe.weight"][:ids.shape[1]]
    for i in range(L):
        h = f"transformer.h.{i}."
        heads = linear(norm(x, h + "ln_1"), h + "attn.c_attn").split(C, 2)
        q, k, v = (t.view(*ids.shape, H, C // H).transpose(1, 2) for t in heads)
        y = scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + linear(y.transpose(1, 2).reshape(*ids.shape, C), h + "attn.c_proj")
        x = x + linear(gelu(linear(norm(x, h + "ln_2"), h + "mlp.c_fc")), h + "mlp.c_proj")
    return norm(x, "transformer.ln_f") @ p["transformer.wte.weight"].t()


def parameters(bias):
    torch.manual_seed(3)
    shapes = {"transformer.wte.weight": (V, C), "transformer.wpe.weight": (T, C)}
    for i in range(L):
        h = f"transformer.h.{i}."
        shapes |= {h + "attn.c_attn.weight": (3 * C, C), h + "attn.c_proj.weight": (C, C),
                   h + "mlp.c_fc.weight": (4 * C, C), h + "mlp.c_proj.weight": (C, 4 * C)}
    p = {name: 0.3 * torch.randn(shape) for name, shape in shapes.items()}
    norms = [f"transformer.h.{i}.ln_{k}" for i in range(L) for k in (1, 2)] + ["transformer.ln_f"]
    p |= {n + ".weight": 1 + 0.2 * torch.randn(C) for n in norms}
    if bias:
        p |= {name.replace(".weight", ".bias"): 0.1 * torch.randn(value.shape[0])
              for name, value in list(p.items()) if "transformer.h." in name or ".ln_f." in name}
    return p


def run(*words):
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(words)}\n{done.stdout}{done.stderr}")
    return done.stdout


ids = torch.randint(0, V, (8, T + 1), generator=torch.Generator().manual_seed(5))
for bias in (False, True):
    with tempfile.TemporaryDirectory() as work:
        at = lambda name: os.path.join(work, name)
        p = parameters(bias)
        args = {"n_layer": L, "n_head": H, "n_embd": C, "block_size": T, "vocab_size": V,
                "bias": bias, "dropout": 0.0}
        state = {"_orig_mod." + name: value for name, value in p.items()}
        state["_orig_mod.lm_head.weight"] = p["transformer.wte.weight"]
        torch.save({"model": state, "model_args": args}, at("ckpt.pt"))
        run(sys.executable, script, at("ckpt.pt"), at("folder"))
        with open(at("rows.jsonl"), "w", encoding="utf-8") as out:
            for row in ids.tolist():
                out.write(json.dumps({"input_ids": row[:T]}) + "\n")
        said = json.loads(run(snug, "eval", "--model", at("folder"), "--data", at("rows.jsonl"),
                              "--json"))
        rows = ids[:, :T]
        z = logits({k: v.double() for k, v in p.items()}, bias, rows)
        truth = cross_entropy(z[:, :-1].reshape(-1, V), rows[:, 1:].reshape(-1)).item()
        # f32 sums over rows of a hundred numbers, through two layers.
        if not math.isclose(said["loss"], truth, rel_tol=1e-5):
            sys.exit(f"bias={bias}: loss {said['loss']}, and nanoGPT's {truth}")
        if not bias:  # as others save it, without the zeros
            os.mkdir(at("bare"))
            shutil.copy(at("folder") + "/config.json", at("bare"))
            zeros = load_file(at("folder") + "/model.safetensors")
            save_file({k: v for k, v in zeros.items() if not k.endswith(".bias")},
                      at("bare") + "/model.safetensors", metadata={"format": "pt"})
            bare = json.loads(run(snug, "eval", "--model", at("bare"), "--data", at("rows.jsonl"),
                                  "--json"))
            if bare["loss"] != said["loss"]:
                sys.exit(f"without its zeros: loss {bare['loss']}, and {said['loss']} with them")
        run(snug, "train", f"model={at('folder')}", f"train_data={at('rows.jsonl')}",
            f"output_dir={at('run')}", "memory=64MiB", "max_steps=2", "global_batch_size=4",
            f"max_length={T}", "learning_rate=1e-3")
        run(sys.executable, script, "--back", at("run/final"), at("back.pt"))
        got = torch.load(at("back.pt"), weights_only=True)
        if got["model_args"] != args or set(got["model"]) != set(p) | {"lm_head.weight"}:
            sys.exit(f"bias={bias}: came back as {got['model_args']}, {sorted(got['model'])}")
        if all(torch.equal(got["model"][k], p[k]) for k in p):
            sys.exit("the run changed no weight")
        print(f"bias={bias}: loss {said['loss']:.6f}, nanoGPT's {truth:.6f}; back with "
              f"{len(got['model'])} tensors")
