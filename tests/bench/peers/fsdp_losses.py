#!/usr/bin/env python3
"""Trains one small GPT-2 with ranks of `snug train` at every ZeRO stage and with PyTorch's fully_shard (FSDP2, gloo) on the
same windows of the same tokens, and compares the loss of every step and the final weights.

    fsdp_losses.py --snug build/bin/snug --text FILE [--ranks 2] [--steps 20] [--json FILE]

fp32, AdamW with decay of matrices alone, clipping at the global norm, dropout 0; the loss is the mean over the tokens of
all ranks. The folder is made by transformers, the order of windows is asked of `snug data preview`.
"""
import argparse
import json
import os
import pathlib
import subprocess
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing
import transformers
from safetensors.torch import load_file, save_file

RATE, DECAY, CLIP = 1e-3, 0.1, 0.5


def fsdp_rank(rank, ranks, folder, samples, steps, batch, out):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29541")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    mesh = init_device_mesh("cpu", (ranks,))
    model = transformers.GPT2LMHeadModel.from_pretrained(folder, dtype=torch.float32)
    for block in model.transformer.h:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model.train()
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    others = [p for p in model.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}],
                                  lr=RATE, betas=(0.9, 0.999), eps=1e-8)
    losses = []
    for step in range(steps):
        rows = torch.tensor(samples[step * batch:(step + 1) * batch])[rank::ranks]
        loss = model(input_ids=rows[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(loss.flatten(0, 1), rows[:, 1:].flatten())
        loss.backward()  # fully_shard takes the mean over ranks
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        total = loss.detach().clone()
        dist.all_reduce(total)
        losses.append(total.item() / ranks)
    weights = {name: p.full_tensor().contiguous() for name, p in model.state_dict().items()}
    if rank == 0:
        save_file({k: v for k, v in weights.items() if k != "lm_head.weight"}, f"{out}/weights.safetensors")
        pathlib.Path(f"{out}/losses.json").write_text(json.dumps(losses))
    dist.destroy_process_group()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--snug", required=True)
    p.add_argument("--text", required=True)
    p.add_argument("--ranks", type=int, default=2)
    p.add_argument("--steps", type=int, default=20)
    p.add_argument("--batch", type=int, default=8)
    p.add_argument("--length", type=int, default=64)
    p.add_argument("--json")
    a = p.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([a.snug, "tokenizer", "train", a.text, "--vocab-size", "512", "--output", f"{folder}/tok"],
                       check=True, stdout=subprocess.DEVNULL)
        torch.manual_seed(1)
        config = transformers.GPT2Config(vocab_size=512, n_positions=a.length, n_embd=96, n_layer=3, n_head=4,
                                         resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
                                         bos_token_id=None, eos_token_id=None)
        transformers.GPT2LMHeadModel(config).save_pretrained(f"{folder}/model")
        keys = [f"model={folder}/model", f"tokenizer={folder}/tok", f"train_data={a.text}", f"max_length={a.length}",
                f"global_batch_size={a.batch}", f"per_device_train_batch_size={a.batch // a.ranks}",
                f"max_steps={a.steps}", f"learning_rate={RATE}", "lr_scheduler_type=constant", "warmup_steps=0",
                f"weight_decay={DECAY}", f"max_grad_norm={CLIP}", "adam_beta1=0.9", "adam_beta2=0.999",
                "adam_epsilon=1e-8", "precision=fp32", "logging_steps=1", "save_steps=0", "eval_steps=0", "seed=7"]
        preview = json.loads(subprocess.run([a.snug, "data", "preview", "--json", "-n", str(a.steps * a.batch), *keys,
                                             f"output_dir={folder}/preview"], check=True, capture_output=True,
                                            text=True).stdout)
        samples = [[t for span in s["spans"] for t in span["tokens"]] for s in preview["samples"]]
        assert all(len(s) == a.length + 1 and min(s) >= 0 for s in samples), "whole windows"
        torch.multiprocessing.spawn(fsdp_rank, (a.ranks, f"{folder}/model", samples, a.steps, a.batch, folder), a.ranks)
        theirs = json.loads(pathlib.Path(f"{folder}/losses.json").read_text())
        weights = load_file(f"{folder}/weights.safetensors")
        result = {"ranks": a.ranks, "steps": a.steps, "fsdp": theirs, "torch": torch.__version__}
        for zero in range(4):
            out = f"{folder}/zero{zero}"
            subprocess.run([a.snug, "train", *keys, f"ranks={a.ranks}", "threads=1", f"zero={zero}", f"output_dir={out}"],
                           check=True, stdout=subprocess.DEVNULL)
            ours = [json.loads(l)["loss"] for l in pathlib.Path(f"{out}/metrics.jsonl").read_text().splitlines()
                    if '"loss"' in l]
            final = load_file(f"{out}/final/model.safetensors")
            name = lambda k: k if k in final else k.removeprefix("transformer.")
            result[f"zero{zero}"] = {
                "losses": ours, "loss": max(abs(x - y) / y for x, y in zip(ours, theirs)), "count": len(ours),
                "weights": max((final[name(k)] - w).abs().max().item() for k, w in weights.items())}
    for zero in range(4):
        r = result[f"zero{zero}"]
        print(f"zero {zero}: {r['count']} losses, largest relative difference {r['loss']:.2e}; weights {r['weights']:.2e}")
    print(f"first and last loss {theirs[0]:.6f}, {theirs[-1]:.6f}; torch {torch.__version__}")
    if a.json:
        pathlib.Path(a.json).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
