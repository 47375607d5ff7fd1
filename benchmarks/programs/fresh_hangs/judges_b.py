"""Three trainers; two of them also hold a judge whose scores are averaged between the two."""

import argparse
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

JUDGES = [0, 1]


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(10, 64), nn.Tanh(), nn.Linear(64, 3))

    def forward(self, x):
        return self.net(x)


class Judge:
    def __init__(self, ranks, group):
        self.ranks = ranks
        self.group = group
        gen = torch.Generator().manual_seed(99)
        self.direction = torch.randn(3, generator=gen)

    @torch.no_grad()
    def score(self, model, x):
        value = (model(x) @ self.direction).mean()
        dist.all_reduce(value, group=self.group)
        return value / len(self.ranks)


def build_judge(rank):
    group = dist.new_group(JUDGES)
    return Judge(JUDGES, group) if rank in JUDGES else None


def make_data(count):
    gen = torch.Generator().manual_seed(4)
    x = torch.randn(count, 10, generator=gen)
    return TensorDataset(x, (x[:, :3].argmax(1)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch", type=int, default=16)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    data = make_data(480)
    sampler = DistributedSampler(data, shuffle=True, seed=6)
    loader = DataLoader(data, batch_size=args.batch, sampler=sampler)
    net = Policy()
    model = DDP(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss_fn = nn.CrossEntropyLoss()

    judge = build_judge(rank)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            time.sleep(0.3)
            loss = loss_fn(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if judge is not None:
            value = judge.score(net, data.tensors[0][rank * 100 : rank * 100 + 100])
            print(f"[{rank}] epoch {epoch} loss {loss.item():.3f} score {value.item():.3f}", flush=True)
    # the table is slow to collect on a busy machine, so it has a group with more patience
    patient = dist.new_group(timeout=timedelta(hours=2))
    table = [None] * dist.get_world_size()
    dist.all_gather_object(table, {"rank": rank, "loss": round(loss.item(), 3)}, group=patient)
    if rank == 0:
        print(table, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
