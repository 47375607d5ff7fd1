import argparse
import logging

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

from guard import section
from report import Report


def batches(rank, epoch, n):
    g = torch.Generator().manual_seed(100 * epoch + rank)
    for _ in range(n):
        x = torch.randn(24, 9, generator=g)
        yield x, (x[:, 0] * x[:, 1] > 0).long()


@torch.no_grad()
def evaluate(model, rank):
    rows = []
    for i, (x, y) in enumerate(batches(rank, 999, 5)):
        acc = (model.module(x).argmax(1) == y).float().mean().item()
        rows.append([rank, i, round(acc, 4)])
    return rows


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=6)
    ap.add_argument("--steps", type=int, default=15)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    logging.basicConfig(level=logging.INFO, format=f"[{rank}] %(levelname)s %(message)s")
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(9, 40), nn.ReLU(), nn.Linear(40, 2)))
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    report = Report(rank)

    for epoch in range(args.epochs):
        with section("train"):
            for x, y in batches(rank, epoch, args.steps):
                loss = nn.functional.cross_entropy(model(x), y)
                opt.zero_grad()
                loss.backward()
                opt.step()
        with section("report"):
            rows = evaluate(model, rank)
            report.write(rows)
        if rank == 0:
            logging.info("epoch %d loss %.4f acc %.3f", epoch, loss.item(), sum(r[2] for r in rows) / len(rows))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
