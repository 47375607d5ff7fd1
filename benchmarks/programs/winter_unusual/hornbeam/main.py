"""Megatron-style tensor parallel transformer, all ranks in one tensor-parallel group."""
import argparse
import logging
import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from layers import Block, clip_

log = logging.getLogger("hornbeam")


class LM(nn.Module):
    def __init__(self, vocab, dim, heads, depth, block):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, dim), nn.Embedding(block, dim)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, vocab)

    def forward(self, x):
        h = self.tok(x) + self.pos.weight[: x.shape[1]]
        for b in self.blocks:
            h = b(h)
        return self.head(self.norm(h))


def batches(vocab, block, batch, seed):
    """Arithmetic progressions modulo `vocab`, with a random stride per row."""
    g = torch.Generator().manual_seed(seed)
    while True:
        start = torch.randint(0, vocab, (batch, 1), generator=g)
        stride = torch.randint(1, 12, (batch, 1), generator=g)
        seq = (start + stride * torch.arange(block + 1)) % vocab
        yield seq[:, :-1], seq[:, 1:]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=90)
    ap.add_argument("--batch", type=int, default=16)
    ap.add_argument("--block", type=int, default=32)
    ap.add_argument("--dim", type=int, default=96)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--seed", type=int, default=42)
    ap.add_argument("--out", default=None)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(message)s")
    torch.manual_seed(args.seed)
    model = LM(61, args.dim, heads=4, depth=3, block=args.block)
    params = list(model.parameters())
    opt = torch.optim.AdamW(params, lr=args.lr, betas=(0.9, 0.95))
    stream = batches(61, args.block, args.batch, args.seed)

    for step in range(args.steps):
        x, y = next(stream)
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        opt.zero_grad(set_to_none=True)
        loss.backward()
        norm = clip_(params, 1.0)
        opt.step()
        if step % 15 == 0 or step + 1 == args.steps:
            log.info("step %d loss %.4f norm %.3f", step, loss.item(), norm.item())

    out = args.out or os.path.join(tempfile.gettempdir(), f"hornbeam-{os.environ.get('MASTER_PORT', '0')}")
    os.makedirs(out, exist_ok=True)
    torch.save({"tp": (rank, world), "model": model.state_dict(), "opt": opt.state_dict()},
               os.path.join(out, f"tp_{rank:02d}_of_{world:02d}.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
