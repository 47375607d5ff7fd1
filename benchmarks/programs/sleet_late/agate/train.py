import argparse
import logging
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from corpus import VOCAB, ReviewStream, build_shards

log = logging.getLogger("reviews")


class BagOfConv(nn.Module):
    def __init__(self, vocab, dim=48):
        super().__init__()
        self.emb = nn.Embedding(vocab + 1, dim, padding_idx=0)
        self.conv = nn.Conv1d(dim, 64, kernel_size=3, padding=1)
        self.head = nn.Sequential(nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, ids):
        h = self.conv(self.emb(ids).transpose(1, 2))
        return self.head(h.amax(-1)).squeeze(-1)


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--batch-size", type=int, default=16)
    p.add_argument("--workers", type=int, default=2)
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--seed", type=int, default=3)
    return p.parse_args()


def run_epoch(model, loader, opt, crit):
    total, count, hits = 0.0, 0, 0
    for ids, label in loader:
        opt.zero_grad(set_to_none=True)
        logit = model(ids)
        loss = crit(logit, label)
        loss.backward()
        opt.step()
        total += loss.item() * len(label)
        hits += ((logit > 0) == (label > 0.5)).sum().item()
        count += len(label)
    stats = torch.tensor([total, hits, count], dtype=torch.float64)
    dist.all_reduce(stats)
    return (stats[0] / stats[2]).item(), (stats[1] / stats[2]).item(), int(stats[2])


def main():
    args = parse()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING,
                        format="%(asctime)s %(message)s")
    torch.manual_seed(args.seed)
    stream = ReviewStream(build_shards(), rank, world, seed=args.seed)
    loader = DataLoader(stream, batch_size=args.batch_size, num_workers=args.workers, drop_last=True)
    model = DistributedDataParallel(BagOfConv(len(VOCAB)))
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    crit = nn.BCEWithLogitsLoss()
    for epoch in range(args.epochs):
        stream.set_epoch(epoch)
        loss, acc, seen = run_epoch(model, loader, opt, crit)
        log.info("epoch %d loss %.4f acc %.3f samples %d", epoch, loss, acc, seen)
    if rank == 0:
        os.makedirs("out", exist_ok=True)
        torch.save(model.module.state_dict(), "out/reviews.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
