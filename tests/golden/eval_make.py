"""Makes eval_model.safetensors and eval_expected.json: a tiny random GPT-2 and what PyTorch computes with
it for `snug eval`: perplexity with a sliding window as in Hugging Face's guide "Perplexity of fixed-length
models" (each token scored once), and multiple-choice scores as lm-evaluation-harness defines them.

  eval_make.py            text_corpus.txt and tokenizer_gpt2.json beside this script are the input
"""
import json
import pathlib

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from transformers import GPT2Config, GPT2LMHeadModel

HERE = pathlib.Path(__file__).resolve().parent
tokenizer = Tokenizer.from_file(str(HERE / "tokenizer_gpt2.json"))
V, P = tokenizer.get_vocab_size(), 48
config = dict(model_type="gpt2", architectures=["GPT2LMHeadModel"], vocab_size=V, n_positions=P, n_embd=24,
              n_layer=2, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, initializer_range=0.25)
torch.manual_seed(5)
model = GPT2LMHeadModel(GPT2Config(**{k: v for k, v in config.items() if k != "architectures"})).eval()
state = {k: v.contiguous() for k, v in model.state_dict().items() if k != "lm_head.weight"}
save_file(state, str(HERE / "eval_model.safetensors"), metadata={"format": "pt"})
model = model.double()


def nll(ids):
    """-log p of ids[1:] given what is before each."""
    with torch.no_grad():
        logits = model(torch.tensor(ids[:-1])[None]).logits[0]
    return -torch.log_softmax(logits, -1)[torch.arange(len(ids) - 1), torch.tensor(ids[1:])].numpy()


def strided(ids, length, stride):
    total, count, previous = 0.0, 0, 0
    for begin in range(0, len(ids), stride):
        end = min(begin + length, len(ids))
        scored = nll(ids[begin:end])  # of positions begin + 1 .. end - 1
        fresh = scored[max(previous, begin + 1) - begin - 1:]
        total, count, previous = total + float(fresh.sum()), count + len(fresh), end
        if end == len(ids):
            break
    assert count == len(ids) - 1
    return {"max_length": length, "stride": stride, "loss": total / count, "tokens": count}


text = (HERE / "text_corpus.txt").read_bytes().decode()
ids = tokenizer.encode(text).ids + [tokenizer.token_to_id("<|endoftext|>")]
expected = {"config": config, "strided": [strided(ids, *x) for x in
                                          [(48, 47), (48, 16), (48, 1), (32, 7), (20, 19), (2, 1)]]}

QUERIES = [("The cat sat on", ["the mat.", "a very long and winding river", "x", "1234 5678"], 0),
           ("Once upon a time ", ["there was", "there were many things to say", "no", "한글"], 2),
           ("", ["alone", "and without any context at all"], 1),
           ("A\n", ["b c", "b c d", "e"], 1),
           ("word " * 40, ["again", "and again and again"], 0),
           ("The river is", ["blue", "green", "wide", "deep"], 3),
           ("He said that he", ["went home.", "would not be able to come to the meeting today."], 0),
           ("numbers: 1, 2, 3,", ["4", "five", "6, 7"], 0)]


def encode(s):
    return tokenizer.encode(s).ids


def pair(context, continuation):
    spaces = len(context) - len(context.rstrip())
    if spaces > 0:
        continuation = context[-spaces:] + continuation
        context = context[:-spaces]
    whole, before = encode(context + continuation), encode(context)
    return before, whole[len(before):]


rows, lines = [], []
for n, (query, choices, gold) in enumerate(QUERIES):
    scores = []
    for choice in choices:
        if query == "":
            before, after = [tokenizer.token_to_id("<|endoftext|>")], encode(" " + choice)
        else:
            before, after = pair(query, " " + choice)
        window = (before + after)[-(P + 1):]
        scores.append(-float(nll(window)[-len(after):].sum()))
    lengths = np.array([float(len(c)) for c in choices])
    rows.append({"scores": scores, "acc": int(np.argmax(scores) == gold),
                 "acc_norm": int(np.argmax(np.array(scores) / lengths) == gold)})
    line = {"query": query, "choices": choices, "gold": gold} if n % 2 else \
           {"ctx": query, "endings": choices, "label": str(gold), "ind": n}
    lines.append(json.dumps(line, ensure_ascii=n % 3 == 0))
expected["choices"] = {"lines": lines, "rows": rows, "acc": float(np.mean([r["acc"] for r in rows])),
                       "acc_norm": float(np.mean([r["acc_norm"] for r in rows]))}
(HERE / "eval_expected.json").write_text(json.dumps(expected, indent=1, ensure_ascii=True) + "\n")
print(expected["strided"], expected["choices"]["acc"], expected["choices"]["acc_norm"], rows)
