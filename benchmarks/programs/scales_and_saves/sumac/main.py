#!/usr/bin/env python
"""Character-level name classifier, GRU, large effective batches through accumulation."""
import argparse
import contextlib
import json
import os
import string

import torch
import torch.distributed as dist
from torch import nn, optim
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

ALPHABET = "_" + string.ascii_lowercase
TAILS = ["ov", "sen", "ez", "ini", "aki", "oglu"]


class Surnames(Dataset):
    def __init__(self, n, seed, width=12):
        g = torch.Generator().manual_seed(seed)
        self.x = torch.zeros(n, width, dtype=torch.long)
        self.y = torch.randint(0, len(TAILS), (n,), generator=g)
        for i in range(n):
            stem = torch.randint(1, 27, (int(torch.randint(3, 8, (1,), generator=g)),), generator=g).tolist()
            if torch.rand(1, generator=g) > 0.1:
                stem += [ALPHABET.index(c) for c in TAILS[self.y[i]]]
            self.x[i, width - len(stem):] = torch.tensor(stem)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class NameNet(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.emb = nn.Embedding(len(ALPHABET), 16, padding_idx=0)
        self.gru = nn.GRU(16, hidden, batch_first=True)
        self.out = nn.Linear(hidden, len(TAILS))

    def forward(self, x):
        return self.out(self.gru(self.emb(x))[1][-1])


class Accumulator:
    """Runs micro-batches and steps the optimizer every `every` of them."""

    def __init__(self, net, opt, every):
        self.net, self.opt, self.every = net, opt, every
        self.pending = 0

    def micro(self, x, y, crit, last):
        closing = last or self.pending + 1 == self.every
        with contextlib.nullcontext() if closing else self.net.no_sync():
            loss = crit(self.net(x), y)
            (loss / self.every).backward()
        self.pending += 1
        if closing:
            self.flush()
        return loss.item()

    def flush(self):
        if not self.pending:
            return
        if self.pending < self.every:
            for p in self.net.parameters():
                p.grad.mul_(self.every / self.pending)
        nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        self.opt.step()
        self.opt.zero_grad(set_to_none=True)
        self.pending = 0


@torch.no_grad()
def accuracy(net, data, rank, world):
    net.eval()
    xs, ys = data.x[rank::world], data.y[rank::world]
    c = torch.tensor([(net(xs).argmax(1) == ys).sum().item(), len(ys)], dtype=torch.float64)
    dist.all_reduce(c)
    net.train()
    return (c[0] / c[1]).item()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=6)
    p.add_argument("--micro-batch", type=int, default=16)
    p.add_argument("--accumulate", type=int, default=4)
    p.add_argument("--hidden", type=int, default=32)
    p.add_argument("--save-dir", default="names_ckpt")
    a = p.parse_args()

    dist.init_process_group(backend="gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(21)
    train, test = Surnames(704, seed=1), Surnames(200, seed=2)
    sampler = DistributedSampler(train, seed=4, drop_last=True)
    loader = DataLoader(train, a.micro_batch, sampler=sampler, drop_last=True)
    net = DDP(NameNet(a.hidden))
    opt = optim.Adam(net.parameters(), lr=5e-3)
    acc = Accumulator(net, opt, a.accumulate)
    crit = nn.CrossEntropyLoss()

    history = []
    for epoch in range(a.epochs):
        sampler.set_epoch(epoch)
        losses = []
        for i, (x, y) in enumerate(loader, 1):
            losses.append(acc.micro(x, y, crit, last=i == len(loader)))
        mean = torch.tensor(sum(losses) / len(losses), dtype=torch.float64)
        dist.all_reduce(mean)
        score = accuracy(net.module, test, rank, world)
        history.append({"epoch": epoch, "loss": mean.item() / world, "acc": score})
        if rank == 0:
            print(json.dumps(history[-1]), flush=True)

    if rank == 0:
        os.makedirs(a.save_dir, exist_ok=True)
        torch.save(net.module.state_dict(), os.path.join(a.save_dir, "last.pt"))
        with open(os.path.join(a.save_dir, "history.json"), "w") as f:
            json.dump(history, f)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
