#!/usr/bin/env python3
"""LoRA, QLoRA and LoRA over int8 of a chat model beside PEFT on the same conversations: validation loss, tokens/s, peak memory.

    lora_peft.py --snug build/bin/snug --model FOLDER --text FILE [--methods lora,qlora,int8] [--seeds 1,2,3] [--json FILE]

FILE is a play: speeches "NAME:\\nwords", an empty line between two. Conversations are made of neighbouring speeches, two
questions and two answers each; the answers are trained. Both sides: bf16 compute, r 16, alpha 32, no dropout, all linear
layers of the blocks, AdamW at one rate with a linear decay, clipping at 1, the same tokens a step. PEFT: base in bf16 or
in NF4 with double quantisation or int8 (bitsandbytes), adapters in fp32 under autocast, rows padded to the longest of a batch,
its tokens and masks by apply_chat_template, 8-bit AdamW for neither. Every seed is a process of each side in turn; the
peak is the largest resident set of the whole process (VmHWM). Validation is the mean over the trained tokens.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from gpt2_run import peak_rss

ASSISTANT = "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
MARKED = ("{% if message['role'] == 'assistant' %}{{'<|im_start|>' + message['role'] + '\n'}}{% generation %}"
          "{{ message['content'] + '<|im_end|>' }}{% endgeneration %}{{ '\n' }}{% else %}" + ASSISTANT + "{% endif %}")
RATE, RANK, ALPHA = 2e-4, 16, 32


def conversations(text, count):
    speeches = [s.split(":\n", 1)[1].strip() for s in pathlib.Path(text).read_text().split("\n\n") if ":\n" in s]
    speeches = [s for s in speeches if 20 <= len(s) <= 300]
    roles = ["user", "assistant", "user", "assistant"]
    talks = [{"messages": [{"role": r, "content": c} for r, c in zip(roles, speeches[i:i + 4])]}
             for i in range(0, len(speeches) - 3, 4)]
    return talks[:count]


def tokenised(tokenizer, rows, length):
    marked = tokenizer.chat_template.replace(ASSISTANT, MARKED)
    assert marked != tokenizer.chat_template, "a template of this shape"
    out = []
    for row in rows:
        made = tokenizer.apply_chat_template(row["messages"], chat_template=marked, return_dict=True, truncation=True,
                                             return_assistant_tokens_mask=True, max_length=length)
        out.append((made["input_ids"], [t if m else -100 for t, m in zip(made["input_ids"], made["assistant_masks"])]))
    return out


def peft_side(args):
    import peft
    import torch
    import transformers
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    tokenizer = transformers.AutoTokenizer.from_pretrained(args.model)
    folder = pathlib.Path(args.folder)
    load = lambda name: tokenised(tokenizer, [json.loads(l) for l in (folder / name).read_text().splitlines()], args.length)
    train, held = load("train.jsonl"), load("valid.jsonl")
    options = {"dtype": torch.bfloat16, "attn_implementation": "sdpa", "use_cache": False}
    if args.method == "qlora":
        options["quantization_config"] = transformers.BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=torch.bfloat16)
    if args.method == "int8":
        options["quantization_config"] = transformers.BitsAndBytesConfig(load_in_8bit=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(args.model, **options)
    if args.method != "lora":
        model = peft.prepare_model_for_kbit_training(model, use_gradient_checkpointing=args.checkpointing)
    elif args.checkpointing:
        model.gradient_checkpointing_enable()
        model.enable_input_require_grads()
    model = peft.get_peft_model(model, peft.LoraConfig(r=RANK, lora_alpha=ALPHA, lora_dropout=0.0, bias="none",
                                                       target_modules="all-linear", task_type="CAUSAL_LM"))
    trained = [p for p in model.parameters() if p.requires_grad]
    steps = len(train) // args.batch * args.epochs
    optimizer = torch.optim.AdamW(trained, lr=RATE, weight_decay=0.0)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, 0, steps)

    def batch_of(rows):
        longest = max(len(ids) for ids, _ in rows)
        ids = torch.tensor([i + [tokenizer.pad_token_id or 0] * (longest - len(i)) for i, _ in rows])
        mask = torch.tensor([[1] * len(i) + [0] * (longest - len(i)) for i, _ in rows])
        labels = torch.tensor([l + [-100] * (longest - len(l)) for _, l in rows])
        return ids, mask, labels

    def loss_of(rows):
        ids, mask, labels = batch_of(rows)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return model(input_ids=ids, attention_mask=mask, labels=labels).loss, int((labels[:, 1:] != -100).sum())

    def evaluated():
        model.eval()
        total = count = 0
        with torch.no_grad():
            for i in range(0, len(held), args.batch):
                loss, n = loss_of(held[i:i + args.batch])
                total, count = total + loss.item() * n, count + n
        model.train()
        return total / count

    before = evaluated()
    order = torch.Generator().manual_seed(args.seed)
    model.train()
    started, tokens = time.perf_counter(), 0
    for _ in range(args.epochs):
        shuffled = torch.randperm(len(train), generator=order).tolist()
        for i in range(0, len(train) - args.batch + 1, args.batch):
            rows = [train[k] for k in shuffled[i:i + args.batch]]
            loss, _ = loss_of(rows)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(trained, 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad(set_to_none=True)
            tokens += sum(len(ids) for ids, _ in rows)
    seconds = time.perf_counter() - started
    print(json.dumps({"before": before, "loss": evaluated(), "tokens_per_second": tokens / seconds, "steps": steps,
                      "tokens": tokens, "seconds": seconds, "peak": peak_rss(), "torch": torch.__version__,
                      "peft": peft.__version__, "transformers": transformers.__version__}))


def snug_side(args, method, seed, folder):
    out = f"{folder}/{method}-{seed}"
    over = ["peft=lora", "load_in_8bit=true"] if method == "int8" else [f"peft={method}"]
    keys = [f"model={args.model}", *over, f"lora_r={RANK}", f"lora_alpha={ALPHA}", "lora_dropout=0",
            "target_modules=all-linear", "task=sft", f"train_data={folder}/train.jsonl", f"eval_data={folder}/valid.jsonl",
            f"output_dir={out}", "precision=bf16", f"max_length={args.length}", f"global_batch_size={args.batch}",
            f"num_train_epochs={args.epochs}", f"learning_rate={RATE}", "lr_scheduler_type=linear", "weight_decay=0",
            "optim=adamw", "max_grad_norm=1", f"seed={seed}", f"threads={args.threads}", "logging_steps=1",
            "save_steps=0", *args.snug_key]
    with open(f"{folder}/printed", "w") as printed:
        process = subprocess.Popen([args.snug, "train", *keys], stdout=printed, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(pathlib.Path(f"{folder}/printed").read_text()[-3000:])
    lines = [json.loads(l) for l in pathlib.Path(f"{out}/metrics.jsonl").read_text().splitlines()]
    memory = json.loads(pathlib.Path(f"{out}/memory.json").read_text())
    held = [l["eval_loss"] for l in lines if "eval_loss" in l]
    steps = [l for l in lines if "loss" in l]
    return {"before": held[0], "loss": held[-1], "steps": len(steps), "seconds": sum(l["step_seconds"] for l in steps),
            "peak": usage.ru_maxrss * 1024, "planned": memory["planned_engine_bytes"] + memory["planned_runtime_bytes"],
            "difference": memory["measured_engine_bytes"] - memory["planned_engine_bytes"]}


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--snug")
    p.add_argument("--model", required=True)
    p.add_argument("--text")
    p.add_argument("--methods", default="lora,qlora")
    p.add_argument("--seeds", default="1,2,3")
    p.add_argument("--train", type=int, default=128)
    p.add_argument("--valid", type=int, default=48)
    p.add_argument("--epochs", type=int, default=1)
    p.add_argument("--batch", type=int, default=8)
    p.add_argument("--length", type=int, default=512)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--snug-key", action="append", default=[])
    p.add_argument("--checkpointing", action="store_true", help="PEFT recomputes its layers")
    p.add_argument("--json")
    p.add_argument("--peft-side", action="store_true")
    p.add_argument("--method")
    p.add_argument("--seed", type=int)
    p.add_argument("--folder")
    args = p.parse_args()
    if args.peft_side:
        return peft_side(args)
    results = []
    with tempfile.TemporaryDirectory() as folder:
        talks = conversations(args.text, args.train + args.valid)
        held = talks[::(args.train + args.valid) // args.valid][:args.valid]
        rest = [t for t in talks if t not in held][:args.train]
        for name, rows in (("train", rest), ("valid", held)):
            pathlib.Path(f"{folder}/{name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
        for method in args.methods.split(","):
            for seed in map(int, args.seeds.split(",")):
                ours = snug_side(args, method, seed, folder)
                command = [sys.executable, __file__, "--peft-side", "--method", method, "--seed", str(seed), "--folder", folder]
                for key in ("model", "epochs", "batch", "length", "threads"):
                    command += [f"--{key}", str(getattr(args, key))]
                done = subprocess.run(command + (["--checkpointing"] if args.checkpointing else []), capture_output=True, text=True)
                if done.returncode:
                    sys.exit(done.stderr[-3000:])
                theirs = json.loads(done.stdout.splitlines()[-1])
                ours["tokens_per_second"] = theirs["tokens"] / ours["seconds"]
                results.append({"method": method, "seed": seed, "snug": ours, "peft": theirs})
                print(json.dumps(results[-1]), file=sys.stderr, flush=True)
    print("| method | seed | held-out loss before | Snug | PEFT | tokens/s | PEFT | ratio | planned MiB | peak MiB | PEFT | ratio |")
    print("|---" * 12 + "|")
    for r in results:
        s, q = r["snug"], r["peft"]
        print(f"| {r['method']} | {r['seed']} | {s['before']:.4f}, {q['before']:.4f} | {s['loss']:.4f} | {q['loss']:.4f} | "
              f"{s['tokens_per_second']:.0f} | {q['tokens_per_second']:.0f} | {s['tokens_per_second'] / q['tokens_per_second']:.2f} | "
              f"{s['planned'] >> 20} | {s['peak'] >> 20} | {q['peak'] >> 20} | {s['peak'] / q['peak']:.2f} |")
    for method in args.methods.split(","):
        pair = [statistics.mean(r[side]["loss"] for r in results if r["method"] == method) for side in ("snug", "peft")]
        print(f"{method}: mean held-out loss {pair[0]:.4f} beside {pair[1]:.4f}, {100 * (pair[0] / pair[1] - 1):+.2f} %")
    print(", ".join(f"{k} {results[-1]['peft'][k]}" for k in ("torch", "transformers", "peft")))
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(results, indent=1) + "\n")


main()
