import argparse
import logging
import math

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from outer import OuterLoop

log = logging.getLogger("lm")


class TinyLM(nn.Module):
    def __init__(self, vocab, width, depth, ctx):
        super().__init__()
        self.tok = nn.Embedding(vocab, width)
        self.pos = nn.Parameter(torch.zeros(ctx, width))
        layer = nn.TransformerEncoderLayer(width, 4, width * 4, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocab)

    def forward(self, x):
        n = x.size(1)
        mask = nn.Transformer.generate_square_subsequent_mask(n)
        return self.head(self.body(self.tok(x) + self.pos[:n], mask=mask, is_causal=True))


def corpus(length, vocab, seed):
    g = torch.Generator().manual_seed(seed)
    table = torch.softmax(3 * torch.randn(vocab, vocab, generator=torch.Generator().manual_seed(7)), -1)
    out = torch.empty(length, dtype=torch.long)
    cur = 0
    for i in range(length):
        out[i] = cur
        cur = int(torch.multinomial(table[cur], 1, generator=g))
    return out


def batches(data, bsz, ctx, gen):
    ix = torch.randint(0, len(data) - ctx - 1, (bsz,), generator=gen)
    x = torch.stack([data[i:i + ctx] for i in ix])
    y = torch.stack([data[i + 1:i + ctx + 1] for i in ix])
    return x, y


@torch.no_grad()
def evaluate(model, data, ctx):
    model.eval()
    xs = data[: (len(data) - 1) // ctx * ctx].view(-1, ctx)
    ys = data[1: xs.numel() + 1].view(-1, ctx)
    total = torch.zeros(2)
    for i in range(dist.get_rank(), len(xs), dist.get_world_size()):
        total[0] += F.cross_entropy(model(xs[i:i + 1]).flatten(0, 1), ys[i], reduction="sum")
        total[1] += ctx
    dist.all_reduce(total)
    model.train()
    return (total[0] / total[1]).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--rounds", type=int, default=10)
    ap.add_argument("--inner-steps", type=int, default=40)
    ap.add_argument("--batch", type=int, default=16)
    ap.add_argument("--ctx", type=int, default=32)
    ap.add_argument("--vocab", type=int, default=48)
    ap.add_argument("--inner-lr", type=float, default=2e-3)
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(asctime)s %(message)s")
    torch.manual_seed(0)
    model = TinyLM(args.vocab, 64, 2, args.ctx)
    outer = OuterLoop(model)
    inner = torch.optim.AdamW(model.parameters(), lr=args.inner_lr, weight_decay=0.1)
    total = args.rounds * args.inner_steps
    sched = torch.optim.lr_scheduler.LambdaLR(
        inner, lambda s: min(1.0, (s + 1) / 40) * (0.55 + 0.45 * math.cos(math.pi * s / total)))

    train = corpus(12000, args.vocab, seed=100 + rank)
    held_out = corpus(4000, args.vocab, seed=99)
    gen = torch.Generator().manual_seed(1000 + rank)

    for r in range(args.rounds):
        running = 0.0
        for _ in range(args.inner_steps):
            x, y = batches(train, args.batch, args.ctx, gen)
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
            inner.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            inner.step()
            sched.step()
            running += loss.item()
        moved = outer.sync()
        val = evaluate(model, held_out, args.ctx)
        log.info("round %d inner loss %.4f outer grad %.3f val %.4f", r, running / args.inner_steps, moved, val)

    if rank == 0:
        torch.save({"model": model.state_dict(), "outer": outer.opt.state_dict(), "rounds": outer.rounds}, "lm.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
