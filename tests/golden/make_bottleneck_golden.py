#!/usr/bin/env python3
"""Writes peft_<name>.safetensors of bottleneck adapters: what AdapterHub's library `adapters` computes, in float64.

    python3 make_bottleneck_golden.py           write every fixture next to this script
    python3 make_bottleneck_golden.py --check   recompute and compare with the committed files (relative 1e-10)

Needs adapters 1.3 and the transformers that it asks for (4.57), beside what make_peft_golden.py needs; not part of CI.

    name  base       what it is for
    ba    gpt2_a     Houlsby (double_seq_bn): transposed layers
    bb    decoder_a  Houlsby: Llama, a factor that does not divide the width
    bc    encoder_b  Houlsby: BERT, norms behind the sums; the classifier beside it
    bd    gpt2_a     Pfeiffer (seq_bn)
    be    decoder_b  Pfeiffer: Llama, tied
    bf    decoder_c  Pfeiffer: Mistral, one layer left out

Tensors and metadata as make_peft_golden.py has them; names and config are Snug's, which has PEFT's form of folders for
adapters that PEFT lacks: the module is the linear layer that the bottleneck stands behind.
"""

import json

import adapters
import numpy as np
import peft
import torch
import transformers

import make_peft_golden as of_peft
from make_golden import ADAMW, CLIP_NORM, STEPS, run_cases, train_adamw, versions


def case(seed, base, task, kind, **config):
    return {"seed": seed, "base": base, "task": task, "kind": kind, "config": config}


CASES = {
    "ba": case(461, "gpt2_a", "CAUSAL_LM", "houlsby", reduction_factor=4),
    "bb": case(462, "decoder_a", "CAUSAL_LM", "houlsby", reduction_factor=5),
    "bc": case(463, "encoder_b", "SEQ_CLS", "houlsby", reduction_factor=3),
    "bd": case(464, "gpt2_a", "CAUSAL_LM", "pfeiffer", reduction_factor=4),
    "be": case(465, "decoder_b", "CAUSAL_LM", "pfeiffer", reduction_factor=7),
    "bf": case(466, "decoder_c", "CAUSAL_LM", "pfeiffer", reduction_factor=2, leave_out=[0]),
}

# Behind which linear layer of a block the library's modules stand.
MODULES = {
    "gpt2": {"attention_adapters": "attn.c_proj", "output_adapters": "mlp.c_proj"},
    "decoder": {"attention_adapters": "self_attn.o_proj", "output_adapters": "mlp.down_proj"},
    "encoder": {"attention.output": "attention.output.dense", "output": "output.dense"},
}


def name_of(key, family):
    """Ours of the library's: <block>.attention_adapters.adapters.a.adapter_down.0.weight."""
    if ".adapters.a." not in key:
        return "base_model.model." + key
    module, end = key.split(".adapters.a.")
    for theirs, ours in MODULES[family].items():
        if module.endswith("." + theirs):
            return f"base_model.model.{module.removesuffix(theirs)}{ours}.{end.replace('down.0', 'down')}"
    raise KeyError(key)


def compute(name):
    spec = CASES[name]
    family = spec["base"].split("_")[0]
    rng = np.random.default_rng(spec["seed"])
    of_peft.decoders.check_angles = lambda *_: None  # of a config.json that this transformers writes otherwise
    model, run, loss_of, mode, truth, _ = of_peft.base_of(spec["base"])
    with mode():
        before = loss_of(run(model)).item()
    assert abs(before - truth) < 1e-10 * truth, (before, truth)  # the older transformers computes the same
    adapters.init(model)
    kind = adapters.DoubleSeqBnConfig if spec["kind"] == "houlsby" else adapters.SeqBnConfig
    model.add_adapter("a", config=kind(**spec["config"]))
    model.train_adapter("a")
    model.double().train()
    trained = {key: value for key, value in model.named_parameters() if value.requires_grad}
    values = {}
    with torch.no_grad():
        for key, parameter in trained.items():
            values[key] = (rng.standard_normal(tuple(parameter.shape)) * 0.3).astype(np.float32)
            parameter.copy_(torch.from_numpy(values[key]))

    def loss_of_batch():
        with mode():
            return loss_of(run(model))

    with mode():
        logits = run(model)
    loss = loss_of(logits)
    assert abs(loss.item() - truth) > 1e-3 * truth
    loss.backward()
    tensors = {name_of(key, family): value for key, value in values.items()}
    for key, parameter in trained.items():
        tensors["grad." + name_of(key, family)] = parameter.grad.numpy().copy()
    tensors["logits"] = logits.detach().numpy().copy()
    tensors["loss"] = np.array(loss.item())
    losses, norms = train_adamw(of_peft.TrainedAlone(trained), loss_of_batch)
    assert losses[0] == loss.item()
    tensors["adamw_losses"] = losses
    tensors["adamw_grad_norms"] = norms
    layers = None
    if out := spec["config"].get("leave_out"):
        layers = [i for i in range(model.config.num_hidden_layers) if i not in out]
    config = {"peft_type": spec["kind"].upper(), "task_type": spec["task"], "inference_mode": True,
              "reduction_factor": spec["config"]["reduction_factor"], "layers_to_transform": layers}
    if spec["task"] == "SEQ_CLS":
        config["modules_to_save"] = ["classifier"]
    metadata = {
        "format": "pt",
        "fixture": f"peft_{name}",
        "base": spec["base"],
        "adapter_config": json.dumps(config, sort_keys=True),
        "adamw": json.dumps({**ADAMW, "clip_norm": CLIP_NORM, "steps": STEPS, "decay_min_rank": 2}, sort_keys=True),
        "seed": str(spec["seed"]),
        "versions": json.dumps({**versions(), "adapters": adapters.__version__, "peft": peft.__version__}, sort_keys=True),
    }
    assert transformers.__version__.startswith("4.57")
    return tensors, metadata


def main():
    run_cases(__doc__, CASES, "peft", compute, floor=1e-6)


if __name__ == "__main__":
    main()
