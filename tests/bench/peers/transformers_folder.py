"""A decoder of Hugging Face transformers from its folder, trained as the Trainer does: the peer of compare.py --folder.

The folder's weights in fp32, scaled_dot_product_attention, one micro-batch a step, fused AdamW, gradient clipping; bf16
is autocast over fp32 weights. --checkpointing recomputes the layers. Prints one JSON object.
"""
import json

import gpt2_run


def main():
    parser = gpt2_run.parser(__doc__)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--checkpointing", action="store_true")
    args = parser.parse_args()
    import torch
    import transformers

    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    imported = gpt2_run.peak_rss()
    model = transformers.AutoModelForCausalLM.from_pretrained(
        args.folder, dtype=torch.float32, attn_implementation="sdpa", use_cache=False)
    if args.checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0.1, fused=True)

    def step():
        tokens = torch.randint(0, model.config.vocab_size, (args.batch, args.length))
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=args.precision == "bf16"):
            loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    print(json.dumps(gpt2_run.result(step, args, imported, torch=torch.__version__,
                                     transformers=transformers.__version__)))


if __name__ == "__main__":
    main()
