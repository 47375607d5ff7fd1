import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from corpus import CLASSES, DIM, load_shard
from stats import class_weights, describe


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--batch-size", type=int, default=32)
    p.add_argument("--lr", type=float, default=0.01)
    return p.parse_args()


@torch.no_grad()
def evaluate(model):
    x, y = load_shard("test")
    hit = torch.tensor([(model(x).argmax(1) == y).sum().item(), len(y)], dtype=torch.float64)
    dist.all_reduce(hit)
    return (hit[0] / hit[1]).item()


def main():
    args = parse()
    if int(os.environ["RANK"]) == 0:
        print(describe("train"), flush=True)

    dist.init_process_group("gloo")
    rank = dist.get_rank()

    torch.manual_seed(20)
    model = nn.Sequential(nn.Linear(DIM, 48), nn.Tanh(), nn.Linear(48, CLASSES))
    loss_fn = nn.CrossEntropyLoss(weight=class_weights("train"))
    ddp = DistributedDataParallel(model)
    opt = torch.optim.Adam(ddp.parameters(), lr=args.lr)

    order = torch.Generator().manual_seed(1000 + rank)
    loader = DataLoader(TensorDataset(*load_shard("train")), batch_size=args.batch_size, shuffle=True,
                        drop_last=True, generator=order)
    for epoch in range(args.epochs):
        for x, y in loader:
            loss = loss_fn(ddp(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        acc = evaluate(model)
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.4f} acc {acc:.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
