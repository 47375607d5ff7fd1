"""Regression on chunks of a remote table, one chunk per rank and step."""
import argparse
import logging
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from source import ReadFailed, RemoteTable

log = logging.getLogger("fit")


def read_patiently(table, chunk, attempts, pause):
    """Returns the chunk, or None when every attempt has failed."""
    for attempt in range(1, attempts + 1):
        try:
            return table.read(chunk)
        except ReadFailed as problem:
            log.warning("attempt %d of %d: %s", attempt, attempts, problem)
            if attempt < attempts:
                time.sleep(pause * attempt)
    return None


def everybody_has(batch):
    flag = torch.tensor([0 if batch is None else 1])
    dist.all_reduce(flag, op=dist.ReduceOp.MIN)
    return bool(flag)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--chunks", type=int, default=60)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--columns", type=int, default=16)
    parser.add_argument("--attempts", type=int, default=3)
    parser.add_argument("--pause", type=float, default=0.05)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s [{rank}] %(levelname)s %(message)s")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(args.columns, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 1))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    table = RemoteTable(args.chunks, args.rows, args.columns, rank)

    try:
        for epoch in range(args.epochs):
            order = torch.randperm(args.chunks, generator=torch.Generator().manual_seed(epoch)).tolist()
            skipped = 0
            total = torch.zeros(1)
            for chunk in order:
                batch = read_patiently(table, chunk, args.attempts, args.pause)
                if not everybody_has(batch):
                    skipped += 1
                    continue
                x, y = batch
                loss = nn.functional.mse_loss(model(x).squeeze(1), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total += loss.detach()
            dist.all_reduce(total)
            if rank == 0:
                mean = total.item() / world / (len(order) - skipped)
                log.info("epoch %d loss %.4f, %d chunks left out", epoch, mean, skipped)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
