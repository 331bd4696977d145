#!/usr/bin/env python3
"""Saves a tiny random GPT-2 folder, written by transformers, for Snug to load. Needs Python; not part of CI.

    python3 interop_make.py DIR
    python3 interop_make.py DIR --shard-size 60KB --spelling v4 --dtype bfloat16
    python3 interop_make.py DIR --published        names and buffers as in the file published as "gpt2"

Beside the model and its tokenizer, DIR gets expected.json: token ids of a text, the last row of logits
computed in float64 from the saved weights, the mean loss of that text, and a greedy continuation.
`interop_check.py DIR` prints the same facts for a folder that Snug wrote.
"""

import argparse
import json
import pathlib

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import ByteLevelBPETokenizer
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

TEXT = (
    "The small model reads a small text, and the small text is read again.\n"
    "Numbers such as 1, 23 and 4567 are here; so are tabs\tand  double spaces.\n"
    "It's what we'll use, isn't it? 눈이 내린다. Ça va, naïve façade. 🙂\n"
) * 4
END = "<|endoftext|>"


def make_tokenizer(vocab_size):
    trained = ByteLevelBPETokenizer()
    trained.train_from_iterator([TEXT], vocab_size=vocab_size, min_frequency=1, special_tokens=[END], show_progress=False)
    return PreTrainedTokenizerFast(
        tokenizer_object=trained._tokenizer, bos_token=END, eos_token=END, unk_token=END, clean_up_tokenization_spaces=False
    )


def randomize(model, seed):
    rng = np.random.default_rng(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = rng.standard_normal(tuple(parameter.shape))
            if ".ln_" in name and name.endswith("weight"):
                value = 1.0 + 0.1 * noise
            else:
                # Positions and blocks outweigh the embedding, or a tied model would only repeat its input.
                size = 0.1 if name.endswith("bias") else 0.2 if "wte" in name else 0.5
                value = noise * size
            parameter.copy_(torch.from_numpy(value))


def respell(folder, spelling):
    """v4 wrote torch_dtype and n_ctx into config.json, v5 writes dtype; both are accepted by readers."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    dtype = config.pop("dtype", None) or config.pop("torch_dtype", None)
    if spelling == "v4":
        config["torch_dtype"] = dtype
        config["n_ctx"] = config["n_positions"]
        config["transformers_version"] = "4.44.0"
        config["task_specific_params"] = {"text-generation": {"do_sample": True, "max_length": 50}}
    else:
        config["dtype"] = dtype
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def as_published(folder, config):
    """No transformer. prefix, and the causal mask saved as a buffer of every layer."""
    path = folder / "model.safetensors"
    tensors = {name.removeprefix("transformer."): value for name, value in load_file(path).items()}
    size = config.n_positions
    for layer in range(config.n_layer):
        tensors[f"h.{layer}.attn.bias"] = torch.ones(size, size).tril().view(1, 1, size, size)
        tensors[f"h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
    save_file(tensors, path, metadata={"format": "pt"})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dir", type=pathlib.Path)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--positions", type=int, default=48)
    parser.add_argument("--vocab", type=int, default=320, help="at least 257")
    parser.add_argument("--seed", type=int, default=301)
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], default="float32")
    parser.add_argument("--spelling", choices=["v4", "v5"], default="v5", help="config.json as transformers 4 or 5 wrote it")
    parser.add_argument("--shard-size", help="split the weights, e.g. 60KB, with an index file")
    parser.add_argument("--untied", action="store_true", help="the head has its own weight")
    parser.add_argument("--published", action="store_true", help="names without prefix, with mask buffers")
    arguments = parser.parse_args()
    if arguments.published and (arguments.shard_size or arguments.untied):
        parser.error("--published is one file with a tied head")

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    tokenizer = make_tokenizer(arguments.vocab)
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=arguments.positions,
        n_embd=arguments.width,
        n_layer=arguments.layers,
        n_head=arguments.heads,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        tie_word_embeddings=not arguments.untied,
    )
    model = GPT2LMHeadModel(config)
    randomize(model, arguments.seed)
    model = model.to(getattr(torch, arguments.dtype))
    sizes = {"max_shard_size": arguments.shard_size} if arguments.shard_size else {}
    model.save_pretrained(arguments.dir, **sizes)
    tokenizer.save_pretrained(arguments.dir)
    respell(arguments.dir, arguments.spelling)
    if arguments.published:
        as_published(arguments.dir, config)

    # The truth, from the folder as it lies on the disk.
    truth = GPT2LMHeadModel.from_pretrained(arguments.dir, attn_implementation="eager", dtype=torch.float32)
    truth = truth.double().eval()
    ids = tokenizer.encode(TEXT, add_special_tokens=False)
    window = torch.tensor([ids[: arguments.positions + 1]])
    with torch.no_grad():
        logits = truth(input_ids=window[:, :-1]).logits[0]
        loss = torch.nn.functional.cross_entropy(logits, window[0, 1:]).item()
        prompt = window[:, :8]
        greedy = truth.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=20, do_sample=False)
    expected = {
        "parameters": sum(p.numel() for p in truth.parameters()),
        "text": TEXT,
        "ids": ids,
        "max_length": arguments.positions,
        "first_window_loss": loss,
        "first_window_last_logits": logits[-1].tolist(),
        "prompt_ids": prompt[0].tolist(),
        "greedy_ids": greedy[0, prompt.shape[1] :].tolist(),
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    }
    (arguments.dir / "expected.json").write_text(json.dumps(expected, indent=1, ensure_ascii=False) + "\n")
    print(f"{arguments.dir}: {expected['parameters']} parameters, first window loss {loss:.6f}")
    for path in sorted(arguments.dir.iterdir()):
        print(f"  {path.name}  {path.stat().st_size}")


if __name__ == "__main__":
    main()
