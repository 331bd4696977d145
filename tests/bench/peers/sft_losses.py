#!/usr/bin/env python3
"""Fine-tunes a chat model with `snug train task=sft` and with a PyTorch loop on the same conversations, and compares
tokens, what of them is trained, and the loss of every step.

    sft_losses.py --snug build/bin/snug --model FOLDER [--steps 20] [--batch 4] [--json FILE]

The tokens of the PyTorch side are transformers' own: apply_chat_template, with the mask of a template to which
{% generation %} was added around an assistant's text and its end token. The order of rows is asked of
`snug data preview`. AdamW with the same settings, fp32, one loss: the sum over trained tokens by their number.
"""
import argparse
import json
import pathlib
import subprocess
import tempfile
import time

import torch
import transformers

ASSISTANT = "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
MARKED = ("{% if message['role'] == 'assistant' %}{{'<|im_start|>' + message['role'] + '\n'}}{% generation %}"
          "{{ message['content'] + '<|im_end|>' }}{% endgeneration %}{{ '\n' }}{% else %}" + ASSISTANT + "{% endif %}")


def conversations(count):
    """Talks of one to three turns, some with a system message, of unequal lengths."""
    places = ["Köln", "Seoul", "Lagos", "Lima", "Oslo", "Pune", "Quito", "Rome"]
    out = []
    for k in range(count):
        messages = []
        if k % 3 == 0:
            messages.append({"role": "system", "content": f"You answer like a sailor number {k}."})
        for turn in range(1 + k % 3):
            place = places[(k + turn) % len(places)]
            messages.append({"role": "user", "content": f"What is {k} + {turn + 7}, and where is {place}?"})
            messages.append({"role": "assistant",
                             "content": f"{k} + {turn + 7} = {k + turn + 7}. " + f"{place} is far away. " * (1 + k % 5)
                             + ("\n\n- one\n- two 😀" if k % 7 == 0 else "")})
        out.append({"messages": messages})
    return out


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--snug", required=True)
    p.add_argument("--model", required=True)
    p.add_argument("--steps", type=int, default=20)
    p.add_argument("--batch", type=int, default=4)
    p.add_argument("--length", type=int, default=256)
    p.add_argument("--rate", type=float, default=1e-4)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--json")
    a = p.parse_args()
    torch.set_num_threads(a.threads)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        rows = conversations(a.steps * a.batch)
        (folder / "chats.jsonl").write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rows))
        keys = [f"model={a.model}", "task=sft", f"train_data={folder}/chats.jsonl", f"max_length={a.length}",
                f"global_batch_size={a.batch}", f"max_steps={a.steps}", f"learning_rate={a.rate}",
                "lr_scheduler_type=constant", "warmup_steps=0", "weight_decay=0", "max_grad_norm=1", "adam_beta1=0.9",
                "adam_beta2=0.999", "adam_epsilon=1e-8", "precision=fp32", "logging_steps=1", "save_steps=0",
                "eval_steps=0", "seed=7", f"threads={a.threads}"]
        preview = json.loads(subprocess.run([a.snug, "data", "preview", "--json", "-n", str(len(rows)), *keys,
                                             f"output_dir={folder}/preview"], check=True, capture_output=True, text=True).stdout)
        start = time.time()
        subprocess.run([a.snug, "train", *keys, f"output_dir={folder}/run"], check=True, stdout=subprocess.DEVNULL)
        ours_seconds = time.time() - start
        ours = [json.loads(l)["loss"] for l in (folder / "run/metrics.jsonl").read_text().splitlines()
                if "loss" in json.loads(l)]

        tokenizer = transformers.AutoTokenizer.from_pretrained(a.model)
        template = tokenizer.chat_template
        assert ASSISTANT.replace("\\n", "\n") in template, "a template of this shape"
        marked = template.replace(ASSISTANT, MARKED)
        samples = []
        different = 0
        for s in preview["samples"]:
            made = tokenizer.apply_chat_template(rows[s["row"]]["messages"], chat_template=marked, return_dict=True,
                                                 return_assistant_tokens_mask=True, truncation=True, max_length=a.length)
            ids, mask = made["input_ids"], made["assistant_masks"]
            labels = [t if m else -100 for t, m in zip(ids, mask)]
            different += ids != s["tokens"] or labels[1:] != [t if t >= 0 else -100 for t in s["targets"][:-1]]
            samples.append((ids, labels))
        model = transformers.AutoModelForCausalLM.from_pretrained(a.model, dtype=torch.float32)
        model.train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=a.rate, betas=(0.9, 0.999), eps=1e-8, weight_decay=0)
        theirs = []
        start = time.time()
        for step in range(a.steps):
            batch = samples[step * a.batch:(step + 1) * a.batch]
            count = sum(l != -100 for _, labels in batch for l in labels[1:])
            total = 0.0
            optimizer.zero_grad()
            for ids, labels in batch:
                logits = model(torch.tensor([ids])).logits[0, :-1]
                loss = torch.nn.functional.cross_entropy(logits, torch.tensor(labels[1:]), ignore_index=-100,
                                                         reduction="sum") / count
                loss.backward()
                total += loss.item()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            theirs.append(total)
        theirs_seconds = time.time() - start
    worst = max(abs(x - y) for x, y in zip(ours, theirs))
    result = {"steps": a.steps, "rows": len(rows), "tokens": sum(len(i) for i, _ in samples),
              "trained": sum(l != -100 for _, labels in samples for l in labels[1:]), "rows_different": different,
              "largest_loss_difference": worst, "snug": ours, "pytorch": theirs,
              "snug_seconds": round(ours_seconds, 1), "pytorch_seconds": round(theirs_seconds, 1),
              "torch": torch.__version__, "transformers": transformers.__version__}
    print(json.dumps(result, indent=1))
    if a.json:
        pathlib.Path(a.json).write_text(json.dumps(result, indent=1) + "\n")
    raise SystemExit(different or worst > 1e-3 or len(ours) != a.steps)


main()
