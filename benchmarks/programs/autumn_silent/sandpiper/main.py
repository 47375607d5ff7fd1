"""Masked-token encoder trained with tensor-wise partitioned optimizer states."""
import argparse
import logging

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from partition import OwnedAdamW

log = logging.getLogger("owned")
MASK = 0


class MaskedEncoder(nn.Module):
    def __init__(self, vocab, dim=48, heads=4, layers=2, length=20):
        super().__init__()
        self.tok = nn.Embedding(vocab, dim)
        nn.init.normal_(self.tok.weight, std=0.1)
        self.pos = nn.Parameter(0.02 * torch.randn(length, dim))
        layer = nn.TransformerEncoderLayer(dim, heads, 2 * dim, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(dim)
        self.bias = nn.Parameter(torch.zeros(vocab))

    def forward(self, ids):
        h = self.norm(self.body(self.tok(ids) + self.pos))
        return F.linear(h, self.tok.weight, self.bias)


def sample(gen, n, length, vocab):
    start = torch.randint(0, vocab - 1, (n, 1), generator=gen)
    stride = torch.randint(1, 5, (n, 1), generator=gen)
    ids = 1 + (start + stride * torch.arange(length)) % (vocab - 1)
    hide = torch.rand(ids.shape, generator=gen) < 0.2
    hide[:, 0] = True
    return torch.where(hide, torch.full_like(ids, MASK), ids), ids, hide


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=70)
    p.add_argument("--batch", type=int, default=24)
    p.add_argument("--length", type=int, default=20)
    p.add_argument("--vocab", type=int, default=30)
    p.add_argument("--lr", type=float, default=3e-3)
    p.add_argument("--warmup", type=int, default=15)
    p.add_argument("--seed", type=int, default=18)
    args = p.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)

    model = MaskedEncoder(args.vocab, length=args.length)
    optimizer = OwnedAdamW(model, args.lr, weight_decay=0.01)
    if rank == 0:
        log.info("weights owned per process: %s", optimizer.load)
    gen = torch.Generator().manual_seed(args.seed * 71 + rank)

    for step in range(args.steps):
        ids, targets, hide = sample(gen, args.batch, args.length, args.vocab)
        count = hide.sum().float()
        total = count.clone()
        dist.all_reduce(total)
        summed = F.cross_entropy(model(ids)[hide], targets[hide], reduction="sum")
        optimizer.zero_grad()
        (summed * world / total).backward()
        optimizer.set_lr(args.lr * min(1.0, (step + 1) / args.warmup))
        norm = optimizer.step(max_norm=1.0)
        if step % 20 == 0 or step == args.steps - 1:
            stat = summed.detach().clone()
            dist.all_reduce(stat)
            if rank == 0:
                log.info("step %3d loss %.4f grad norm %.3f", step, (stat / total).item(), norm)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
