"""Token model on a second-order Markov source. One replica, split over all processes."""
import argparse

import torch
import torch.distributed as dist
from torch import nn

from layers import SplitFFN, Streams, VocabParallelHead, clip_


class Source:
    def __init__(self, vocab, seed=44):
        g = torch.Generator().manual_seed(seed)
        self.table = (torch.randn(vocab, vocab, vocab, generator=g) * 2.5).softmax(-1)

    def draw(self, n, length, gen):
        x = torch.randint(0, self.table.shape[0], (n, 2), generator=gen)
        for _ in range(length - 2):
            nxt = torch.multinomial(self.table[x[:, -2], x[:, -1]], 1, generator=gen)
            x = torch.cat([x, nxt], 1)
        return x


class SplitLM(nn.Module):
    def __init__(self, vocab, width, hidden, depth, streams, drop):
        super().__init__()
        self.emb = nn.Embedding(vocab, width)
        self.back = nn.Linear(2 * width, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.ffns = nn.ModuleList(SplitFFN(width, hidden, streams, drop) for _ in range(depth))
        self.head = VocabParallelHead(width, vocab, streams)

    def forward(self, x):
        e = self.emb(x)
        h = self.back(torch.cat([e[:, :-2], e[:, 1:-1]], -1))
        for n, f in zip(self.norms, self.ffns):
            h = h + f(n(h))
        return self.head(h, x[:, 2:])


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=120)
    ap.add_argument("--batch", type=int, default=24)
    ap.add_argument("--vocab", type=int, default=12)
    ap.add_argument("--seed", type=int, default=71)
    ap.add_argument("--prefix", default="splitlm")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()

    torch.manual_seed(args.seed)          # replicated weights start out alike
    streams = Streams(args.seed, rank)
    model = SplitLM(args.vocab, 32, 96, 2, streams, drop=0.1)
    opt = torch.optim.AdamW(model.parameters(), lr=4e-3)
    source = Source(args.vocab)
    gen = torch.Generator().manual_seed(args.seed)   # the batch is the same on every process
    held = source.draw(64, 24, torch.Generator().manual_seed(args.seed + 1))

    for step in range(1, args.steps + 1):
        loss = model(source.draw(args.batch, 24, gen))
        opt.zero_grad()
        loss.backward()
        norm = clip_(list(model.parameters()), 1.0)
        opt.step()
        if step % 20 == 0:
            model.eval()
            with torch.no_grad():
                val = model(held).item()
            model.train()
            if rank == 0:
                print(f"step {step} train {loss.item():.3f} held-out {val:.3f} |g| {norm:.3f}", flush=True)

    shards = {n: p.detach() for n, p in model.named_parameters() if getattr(p, "shard", False)}
    torch.save(shards, f"{args.prefix}.shard{rank}.pt")
    if rank == 0:
        torch.save({n: p.detach() for n, p in model.named_parameters() if n not in shards},
                   f"{args.prefix}.common.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
