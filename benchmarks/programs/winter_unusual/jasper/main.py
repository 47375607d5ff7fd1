"""Two-stage pipeline with embedding and output head tied across the first and last stage."""
import argparse
import logging

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from pipe import OneFOneB

log = logging.getLogger("jasper")


class ConvBlock(nn.Module):
    """Causal depthwise conv mixer."""

    def __init__(self, dim, k=5):
        super().__init__()
        self.k = k
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.conv = nn.Conv1d(dim, dim, k, groups=dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 3 * dim), nn.GELU(), nn.Linear(3 * dim, dim))

    def forward(self, x):
        h = F.pad(self.norm1(x).transpose(1, 2), (self.k - 1, 0))
        x = x + self.conv(h).transpose(1, 2)
        return x + self.mlp(self.norm2(x))


class Stage(nn.Module):
    def __init__(self, vocab, dim, depth, first, last, seed):
        super().__init__()
        self.first, self.last = first, last
        self.shared = None
        if first or last:
            w = torch.randn(vocab, dim, generator=torch.Generator().manual_seed(seed)) * dim ** -0.5
            self.shared = nn.Parameter(w)
        self.blocks = nn.Sequential(*[ConvBlock(dim) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim) if last else nn.Identity()

    def forward(self, x):
        h = F.embedding(x, self.shared) * self.shared.shape[1] ** 0.5 if self.first else x
        h = self.norm(self.blocks(h))
        return F.linear(h, self.shared) if self.last else h


@torch.no_grad()
def clip_pipeline(stage, count_shared, max_norm):
    sq = sum(p.grad.square().sum() for p in stage.parameters() if p is not stage.shared)
    if count_shared:
        sq = sq + stage.shared.grad.square().sum()
    dist.all_reduce(sq)
    norm = sq.sqrt()
    torch._foreach_mul_([p.grad for p in stage.parameters()], (max_norm / (norm + 1e-6)).clamp(max=1.0))
    return norm


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=50)
    ap.add_argument("--micro", type=int, default=8)
    ap.add_argument("--micro-size", type=int, default=8)
    ap.add_argument("--block", type=int, default=32)
    ap.add_argument("--dim", type=int, default=96)
    ap.add_argument("--lr", type=float, default=2e-3)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    first, last = rank == 0, rank == world - 1
    logging.basicConfig(level=logging.INFO if last else logging.WARNING, format="%(message)s")
    vocab = 64
    torch.manual_seed(rank)
    stage = Stage(vocab, args.dim, 3, first, last, seed=99)
    opt = torch.optim.AdamW(stage.parameters(), lr=args.lr, weight_decay=0.01)
    act = (args.micro_size, args.block, args.dim)
    engine = OneFOneB(stage, lambda o, t: F.cross_entropy(o.flatten(0, 1), t.flatten()), args.micro, act)
    ends = dist.new_group([0, world - 1])

    g = torch.Generator().manual_seed(4)
    table = torch.randint(0, vocab, (vocab, vocab), generator=g)
    for step in range(args.steps):
        n = args.micro * args.micro_size
        seq = torch.empty(n, args.block + 1, dtype=torch.long)
        seq[:, :2] = torch.randint(0, vocab, (n, 2), generator=g)
        for t in range(2, args.block + 1):
            seq[:, t] = table[seq[:, t - 2], seq[:, t - 1]]
        xs = seq[:, :-1].split(args.micro_size)
        ys = seq[:, 1:].split(args.micro_size)
        opt.zero_grad(set_to_none=True)
        loss = engine.step(xs, ys)
        if stage.shared is not None:
            dist.all_reduce(stage.shared.grad, group=ends)
        norm = clip_pipeline(stage, count_shared=first, max_norm=1.0)
        opt.step()
        if step % 10 == 0 or step + 1 == args.steps:
            log.info("step %d loss %.4f grad norm %.3f", step, loss.item(), norm.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
