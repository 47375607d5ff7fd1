"""DDP pretraining loop with asynchronous distributed checkpoints."""
import argparse
import logging
import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from checkpoint import CheckpointManager

log = logging.getLogger("pretrain")


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.up = nn.Linear(dim, 4 * dim)
        self.down = nn.Linear(4 * dim, dim)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self, vocab=256, dim=80, depth=3):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.blocks = nn.ModuleList(Block(dim) for _ in range(depth))
        self.out = nn.Linear(dim, vocab)

    def forward(self, ids):
        x = self.emb(ids).cumsum(1) / torch.arange(1, ids.shape[1] + 1).view(1, -1, 1)
        for b in self.blocks:
            x = b(x)
        return self.out(x)


def batch(g, bs, seq, vocab):
    start = torch.randint(0, vocab, (bs, 1), generator=g)
    return (start + 3 * torch.arange(seq + 1)) % vocab


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=140)
    ap.add_argument("--save-every", type=int, default=5)
    ap.add_argument("--warmup-steps", type=int, default=40, help="no checkpoints before")
    ap.add_argument("--batch-size", type=int, default=24)
    ap.add_argument("--seq-len", type=int, default=48)
    ap.add_argument("--out", default=None)
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO, format=f"[%(levelname)s r{rank}] %(message)s")
    logging.getLogger("torch.distributed").setLevel(logging.ERROR)
    box = [args.out or (tempfile.mkdtemp(prefix="ckpt_") if rank == 0 else None)]
    dist.broadcast_object_list(box)

    torch.manual_seed(0)
    model = DDP(Net())
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    ckpt = CheckpointManager(box[0], model, opt, keep=2)

    g = torch.Generator().manual_seed(77 + rank)
    for step in range(1, args.steps + 1):
        ids = batch(g, args.batch_size, args.seq_len, 256)
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        opt.step()
        opt.zero_grad()
        if step % 25 == 0:
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            if rank == 0:
                log.info("step %d loss %.4f", step, mean.item() / world)
        if step >= args.warmup_steps and step % args.save_every == 0:
            ckpt.save(step)
    ckpt.wait()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
