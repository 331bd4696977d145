"""One GPT-2 training run in PyTorch, timed: the peer that `snug bench` is compared with.

The model is the one Snug trains: learned positions, pre-norm blocks, fused QKV, tanh-GELU, tied head,
mean cross-entropy, gradient clipping, AdamW. Attention is scaled_dot_product_attention; bf16 is autocast
over fp32 weights; the optimizer is AdamW(fused=True). The vocabulary is padded to 128 as Snug pads it.
Prints one JSON object.
"""
import json
import sys

import gpt2_run


def arguments():
    parser = gpt2_run.parser(__doc__, vocab=50304, steps=3)
    parser.add_argument("--accumulate", type=int, default=1, help="micro-batches of a step")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--checkpoint", action="store_true", help="recompute each block in backward")
    parser.add_argument("--profile", action="store_true", help="print the slowest operators to stderr")
    return parser.parse_args()


def main():
    args = arguments()
    import torch
    from torch import nn
    from torch.nn import functional as F
    from torch.utils.checkpoint import checkpoint

    if args.device == "cpu":
        torch.set_num_threads(args.threads)
    else:
        torch.set_float32_matmul_precision("high")
    torch.manual_seed(0)
    imported = gpt2_run.peak_rss()
    C, H = args.width, args.heads

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.ln_1 = nn.LayerNorm(C)
            self.qkv = nn.Linear(C, 3 * C)
            self.proj = nn.Linear(C, C)
            self.ln_2 = nn.LayerNorm(C)
            self.fc = nn.Linear(C, 4 * C)
            self.out = nn.Linear(4 * C, C)

        def forward(self, x):
            B, T, _ = x.shape
            q, k, v = self.qkv(self.ln_1(x)).split(C, dim=2)
            q, k, v = (t.view(B, T, H, C // H).transpose(1, 2) for t in (q, k, v))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.proj(y.transpose(1, 2).reshape(B, T, C))
            return x + self.out(F.gelu(self.fc(self.ln_2(x)), approximate="tanh"))

    class Gpt(nn.Module):
        def __init__(self):
            super().__init__()
            self.wte = nn.Embedding(args.vocab, C)
            self.wpe = nn.Embedding(args.length, C)
            self.blocks = nn.ModuleList(Block() for _ in range(args.layers))
            self.ln_f = nn.LayerNorm(C)
            self.head = nn.Linear(C, args.vocab, bias=False)
            self.head.weight = self.wte.weight
            nn.init.normal_(self.wte.weight, std=0.02)
            nn.init.normal_(self.wpe.weight, std=0.02)

        def forward(self, tokens, targets):
            x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
            for block in self.blocks:
                if args.checkpoint:
                    x = checkpoint(block, x, use_reentrant=False)
                else:
                    x = block(x)
            logits = self.head(self.ln_f(x))
            return F.cross_entropy(logits.view(-1, args.vocab), targets.view(-1))

    model = Gpt().to(args.device)
    parameters = sum(p.numel() for p in model.parameters())
    step_model = torch.compile(model) if args.compile else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, fused=True)
    shape = (args.batch, args.length)

    def step():
        for _ in range(args.accumulate):
            tokens = torch.randint(0, args.vocab, shape, device=args.device)
            targets = torch.randint(0, args.vocab, shape, device=args.device)
            with torch.autocast(args.device, dtype=torch.bfloat16, enabled=args.precision == "bf16"):
                loss = step_model(tokens, targets) / args.accumulate
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    result = gpt2_run.result(step, args, imported, torch=torch.__version__, parameters=parameters)
    if args.profile:
        with torch.profiler.profile() as profile:
            step()
        print(profile.key_averages().table(sort_by="self_cpu_time_total", row_limit=25), file=sys.stderr)
    result["tokens_per_second"] *= args.accumulate
    result["peak_device_bytes"] = torch.cuda.max_memory_reserved() if args.device == "cuda" else None
    print(json.dumps(result))


if __name__ == "__main__":
    main()
