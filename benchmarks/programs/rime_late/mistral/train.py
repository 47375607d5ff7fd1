"""Condition monitoring: a 1-d convolutional classifier trained data-parallel."""
import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Subset
from torch.utils.data.distributed import DistributedSampler

from records import CONDITIONS, VibrationWindows, build_table
from session import Session


def make_model(width):
    return nn.Sequential(
        nn.Conv1d(1, width, 9, stride=2, padding=4), nn.GELU(),
        nn.Conv1d(width, width * 2, 5, stride=2, padding=2), nn.GELU(),
        nn.Conv1d(width * 2, width * 2, 3, padding=1), nn.GELU(),
        nn.AdaptiveAvgPool1d(4), nn.Flatten(), nn.Linear(width * 8, len(CONDITIONS)),
    )


@torch.no_grad()
def validate(model, loader):
    model.eval()
    hits = torch.zeros(2)
    for signal, label in loader:
        hits[0] += (model(signal).argmax(1) == label).sum()
        hits[1] += len(label)
    dist.all_reduce(hits)
    model.train()
    return (hits[0] / hits[1]).item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--rows", type=int, default=1800)
    parser.add_argument("--batch-size", type=int, default=20)
    parser.add_argument("--width", type=int, default=24)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--out", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "out"))
    args = parser.parse_args()

    torch.manual_seed(7)
    with Session(args.out) as session:
        table = os.path.join(args.out, "table.csv")
        if session.rank == 0:
            build_table(table, args.rows, seed=3)
        dist.barrier()
        data = VibrationWindows(table)
        held_out = 300
        train_set = Subset(data, range(held_out, len(data)))
        val_set = Subset(data, range(session.rank, held_out, session.world))
        sampler = DistributedSampler(train_set, seed=11, drop_last=True)
        train_loader = DataLoader(train_set, args.batch_size, sampler=sampler, drop_last=True)
        val_loader = DataLoader(val_set, 50)

        model = DistributedDataParallel(make_model(args.width))
        optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
        for epoch in range(args.epochs):
            sampler.set_epoch(epoch)
            for signal, label in train_loader:
                loss = nn.functional.cross_entropy(model(signal), label)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
                session.note(len(label), loss.item())
            session.log.info("epoch %d accuracy %.3f", epoch, validate(model.module, val_loader))


if __name__ == "__main__":
    main()
