#!/usr/bin/env python
"""Train a small block drafter with DDP."""
import argparse
import logging
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from data import VOCAB, Dialogues
from objective import BLOCK, draft_loss, valid_anchors

log = logging.getLogger("drafter")


class Drafter(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, width)
        self.mix = nn.Sequential(nn.Linear(4 * width, 96), nn.GELU(), nn.Linear(96, BLOCK * width))
        self.out = nn.Linear(width, VOCAB)
        self.width = width

    def forward(self, ctx):
        h = self.embed(ctx).flatten(1)
        return self.out(self.mix(h).view(-1, BLOCK, self.width))


class Trainer:
    def __init__(self, args):
        self.args = args
        self.rank = dist.get_rank()
        torch.manual_seed(args.seed)
        self.model = DDP(Drafter())
        self.optim = torch.optim.AdamW(self.model.parameters(), lr=args.lr)
        data = Dialogues()
        self.sampler = DistributedSampler(data, shuffle=True, seed=args.seed, drop_last=True)
        self.loader = DataLoader(data, batch_size=args.batch, sampler=self.sampler, drop_last=True)
        self.updates = 0

    def run_epoch(self, epoch):
        self.sampler.set_epoch(epoch)
        total, seen, left_out = 0.0, 0, 0
        for tokens, mask in self.loader:
            room = torch.tensor(float(valid_anchors(mask)[0].numel() > 0))
            dist.all_reduce(room, op=dist.ReduceOp.MIN)
            if not room:
                left_out += 1
                continue
            loss = draft_loss(self.model, tokens, mask)
            self.optim.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optim.step()
            self.updates += 1
            total, seen = total + loss.item(), seen + 1
            if self.rank == 0 and self.updates % 20 == 0:
                log.info("update %d loss %.4f", self.updates, loss.item())
        return total, seen, left_out

    def finish_epoch(self, epoch, total, seen, left_out):
        dist.barrier()
        stats = torch.tensor([total, float(seen), float(left_out)], dtype=torch.float64)
        dist.all_reduce(stats)
        if self.rank == 0:
            log.info("epoch %d mean loss %.4f, %d batches left out", epoch, stats[0] / stats[1], int(stats[2]) // dist.get_world_size())
            os.makedirs(self.args.out, exist_ok=True)
            torch.save({"model": self.model.module.state_dict(), "optim": self.optim.state_dict(), "epoch": epoch},
                       os.path.join(self.args.out, "drafter.pt"))

    def fit(self):
        for epoch in range(self.args.epochs):
            self.finish_epoch(epoch, *self.run_epoch(epoch))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--batch", type=int, default=3)
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--seed", type=int, default=11)
    p.add_argument("--out", default="/tmp/drafter_run")
    args = p.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    dist.init_process_group("gloo")
    try:
        Trainer(args).fit()
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
