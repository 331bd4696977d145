"""Makes generate_expected.json: what transformers' generate() does with the tiny random GPT-2 of
eval_model.safetensors: greedy search with penalties, beam search, log probabilities, and its logits processors on
given logits. `generate_make.py --check` recomputes and compares.
"""
import itertools
import json
import pathlib
import sys
from collections import Counter

import torch
import transformers
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import GenerationConfig, GPT2Config, GPT2LMHeadModel

HERE = pathlib.Path(__file__).resolve().parent
tokenizer = Tokenizer.from_file(str(HERE / "tokenizer_gpt2.json"))
config = json.loads((HERE / "eval_expected.json").read_text())["config"]
model = GPT2LMHeadModel(GPT2Config(**{k: v for k, v in config.items() if k != "architectures"})).eval()
state = load_file(str(HERE / "eval_model.safetensors"))
model.load_state_dict(state, strict=False)
model.tie_weights()
model = model.double()
model.generation_config = GenerationConfig()
PROMPTS = ["The cat sat on", "Once upon a time there was", "A", "numbers: 1, 2, 3, 4", "한글 and more",
           "The river is wide and the river is deep and the"]


def encode(text):
    return tokenizer.encode(text).ids


def generate(prompt, eos, **options):
    ids = torch.tensor([encode(prompt)])
    out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, eos_token_id=eos or None,
                         pad_token_id=0, return_dict_in_generate=True, output_scores=True, output_logits=True,
                         **options)
    rows = []
    for i in range(out.sequences.shape[0]):
        new = out.sequences[i, ids.shape[1]:].tolist()
        end = "length"
        for at, token in enumerate(new):
            if eos and token in eos:
                new, end = new[:at], "eos"
                break
        row = {"tokens": new, "finish_reason": end}
        if options.get("num_beams", 1) > 1:
            row["score"] = float(out.sequences_scores[i])
        rows.append(row)
    # Log probabilities under the model, by running the whole text.
    for row in rows:
        full = torch.tensor([ids[0].tolist() + row["tokens"]])
        with torch.no_grad():
            logp = torch.log_softmax(model(full).logits[0], -1)
        at = range(ids.shape[1] - 1, full.shape[1] - 1)
        row["logprobs"] = [float(logp[p, t]) for p, t in zip(at, row["tokens"])]
        row["top"] = [[int(x) for x in torch.topk(logp[p], 3).indices] for p in at]
    return rows


def case(kind, prompt, eos=(), **options):
    return {"kind": kind, "prompt": prompt, "eos": list(eos), "options": options,
            "expected": generate(prompt, list(eos), **options)}


greedy = []
for prompt in PROMPTS:
    greedy.append(case("greedy", prompt, max_new_tokens=20))
    for more in [dict(repetition_penalty=1.3), dict(repetition_penalty=0.8), dict(no_repeat_ngram_size=2),
                 dict(no_repeat_ngram_size=3, repetition_penalty=1.1), dict(no_repeat_ngram_size=1)]:
        greedy.append(case("greedy", prompt, max_new_tokens=20, **more))
# Tokens that greedy search finds often, not first: they make texts end in the middle.
counts = Counter(t for c in greedy[::6] for t in c["expected"][0]["tokens"][3:])
often = [t for t, _ in counts.most_common(6)]
for prompt, eos in itertools.product(PROMPTS[:4], [often[:1], often[1:3]]):
    for least in [0, 6, 12]:
        greedy.append(case("greedy", prompt, eos, max_new_tokens=20, min_new_tokens=least))

beams = []
for beams_, penalty, early in itertools.product([2, 3, 4], [0.5, 1.0, 2.0], [False, True, "never"]):
    n = len(beams)
    beams.append(case("beam", PROMPTS[n % len(PROMPTS)], [], max_new_tokens=10, num_beams=beams_,
                      length_penalty=penalty, early_stopping=early, num_return_sequences=beams_))
    for eos in [often[:1], often[1:3], often[2:5]]:
        beams.append(case("beam", PROMPTS[(n + len(eos)) % len(PROMPTS)], eos, max_new_tokens=16, num_beams=beams_,
                          length_penalty=penalty, early_stopping=early, num_return_sequences=min(beams_, 3)))
for more in [dict(repetition_penalty=1.4), dict(no_repeat_ngram_size=2), dict(min_new_tokens=8),
             dict(length_penalty=-1.0), dict(length_penalty=0.0, early_stopping="never"),
             dict(repetition_penalty=1.2, no_repeat_ngram_size=3, min_new_tokens=5, length_penalty=0.7)]:
    for prompt in PROMPTS[:4]:
        beams.append(case("beam", prompt, often[:2], max_new_tokens=14, num_beams=3, num_return_sequences=3, **more))


def processed(logits, history, new, options, eos=()):
    """Scores after transformers' own list of processors, in its order; None is minus infinity."""
    g = GenerationConfig(do_sample=True, **options)
    g._eos_token_tensor = torch.tensor(list(eos)) if eos else None
    chain = model._get_logits_processor(g, input_ids_seq_length=len(history) - new, device="cpu", model_kwargs={})
    scores = chain(torch.tensor([history]), torch.tensor([logits], dtype=torch.float32))[0]
    p = torch.softmax(scores.double(), -1)
    return {"logits": logits, "history": history, "new_tokens": new, "eos": list(eos), "options": options,
            "scores": [None if x == float("-inf") else float(x) for x in scores],
            "probabilities": [float(x) for x in p]}


torch.manual_seed(11)
spread = [round(float(x), 3) for x in torch.randn(40) * 2]
ties = [1.0, 3.0, 2.0, 3.0, 2.0, 2.0, 0.5, 3.0, -1.0, 2.0, 0.5, 1.0]
flat = [0.0] * 8
steep = [10.0, 9.5, -3.0, 0.0, 9.5, 2.0]
rows = []
for logits in [spread, ties, flat, steep]:
    for temperature, k, p, m in itertools.product([1.0, 0.5, 2.0], [0, 1, 3, 5], [1.0, 0.9, 0.5, 0.1], [0.0, 0.05, 0.5]):
        if (k, p, m).count(0) + (p == 1.0) < 1 and temperature != 0.5:
            continue  # all three at once: one temperature will do
        row = processed(logits, [0], 0, dict(temperature=temperature, top_k=k, top_p=p, min_p=m))
        rows.append({key: row[key] for key in ["logits", "options", "probabilities"]})
rules = []
for history in [[1, 2, 3, 1, 2], [5, 5, 5, 5], [7], [0, 1, 0, 1, 0]]:
    for options in [dict(repetition_penalty=1.5), dict(repetition_penalty=0.7), dict(no_repeat_ngram_size=1),
                    dict(no_repeat_ngram_size=2), dict(no_repeat_ngram_size=3), dict(min_new_tokens=3),
                    dict(repetition_penalty=1.2, no_repeat_ngram_size=2, min_new_tokens=2, temperature=0.7, top_k=6,
                         top_p=0.9, min_p=0.02)]:
        options = {"top_k": 0, **options}
        rules.append(processed(spread[:12], history, min(1, len(history) - 1), options, [4, 2]))

result = {"transformers": transformers.__version__, "config": config, "greedy": greedy, "beam": beams, "filters": rows,
          "rules": rules}
path = HERE / "generate_expected.json"


def rounded(x):  # far below the tests' tolerances
    if isinstance(x, float):
        return float(f"{x:.6g}")
    if isinstance(x, dict):
        return {k: rounded(v) for k, v in x.items()}
    return [rounded(v) for v in x] if isinstance(x, list) else x


text = json.dumps(rounded(result), ensure_ascii=True, separators=(",", ":")) + "\n"
text = text.replace('{"kind"', '\n{"kind"').replace('{"logits"', '\n{"logits"')
if "--check" in sys.argv:
    sys.exit(0 if path.read_text() == text else "differs")
path.write_text(text)
ends = Counter(e["finish_reason"] for c in greedy + beams for e in c["expected"])
print(len(greedy), len(beams), len(rows), len(rules), len(text), ends, often)
