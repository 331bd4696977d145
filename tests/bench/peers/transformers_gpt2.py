"""GPT-2 of Hugging Face transformers, trained in as little memory as its own switches allow: the peer of least_memory.py.

Random weights, one sequence at a time (--batch of them make an optimizer step), gradient checkpointing,
scaled_dot_product_attention, AdamW, gradient clipping; bf16 is autocast over fp32 weights. Prints one JSON object.
"""
import json

import gpt2_run


def arguments():
    parser = gpt2_run.parser(__doc__)
    parser.add_argument("--adamw", choices=["fused", "foreach", "loop"], default="fused")
    return parser.parse_args()


def main():
    args = arguments()
    import torch
    import transformers

    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    imported = gpt2_run.peak_rss()
    config = transformers.GPT2Config(
        n_layer=args.layers, n_embd=args.width, n_head=args.heads, vocab_size=args.vocab, n_positions=args.length,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False, attn_implementation="sdpa",
    )
    model = transformers.GPT2LMHeadModel(config)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-4, weight_decay=0.1, fused=args.adamw == "fused" or None,
        foreach={"foreach": True, "loop": False}.get(args.adamw),
    )

    def step():
        for _ in range(args.batch):
            tokens = torch.randint(0, args.vocab, (1, args.length))
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=args.precision == "bf16"):
                loss = model(input_ids=tokens, labels=tokens).loss / args.batch
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    print(json.dumps(gpt2_run.result(
        step, args, imported, torch=torch.__version__, transformers=transformers.__version__,
        parameters=sum(p.numel() for p in model.parameters()))))


if __name__ == "__main__":
    main()
