import argparse
import random

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

from batching import LengthBatches, collate


def parse_args():
    p = argparse.ArgumentParser("sequence tagging of sums")
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--batch-size", type=int, default=16)
    p.add_argument("--samples", type=int, default=1536)
    p.add_argument("--hidden", type=int, default=48)
    p.add_argument("--lr", type=float, default=4e-3)
    p.add_argument("--seed", type=int, default=21)
    p.add_argument("--log-every", type=int, default=12)
    return p.parse_args()


def seed_everything(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


class Readings(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.lengths = [8 + (i * 5) % 32 for i in range(n)]
        self.rows = []
        for length in self.lengths:
            walk = torch.randn(length, 3, generator=g).cumsum(0) * 0.3
            target = torch.stack([walk[:, 0].mean(), walk[-1, 1], walk[:, 2].max()])
            self.rows.append((walk, target))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


class Reader(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.rnn = nn.GRU(3, hidden, batch_first=True)
        self.drop = nn.Dropout(0.1)
        self.out = nn.Linear(hidden * 2, 3)

    def forward(self, x, lengths):
        seq, _ = self.rnn(x)
        mask = torch.arange(x.size(1))[None, :] < lengths[:, None]
        mean = (seq * mask[..., None]).sum(1) / lengths[:, None]
        last = seq[torch.arange(len(x)), lengths - 1]
        return self.out(self.drop(torch.cat([mean, last], dim=1)))


def evaluate(model, dataset, rank, world):
    model.eval()
    picks = list(range(rank, len(dataset), world))
    acc = torch.zeros(2)
    with torch.no_grad():
        for at in range(0, len(picks), 64):
            x, lengths, y = collate([dataset[i] for i in picks[at:at + 64]])
            acc += torch.tensor([((model(x, lengths) - y) ** 2).mean(1).sum().item(), float(len(y))])
    dist.all_reduce(acc)
    model.train()
    return (acc[0] / acc[1]).item()


def main():
    args = parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    seed_everything(args.seed + rank)
    train, val = Readings(args.samples, seed=1), Readings(256, seed=2)
    sampler = LengthBatches(train.lengths, args.batch_size, rank, world)
    loader = DataLoader(train, batch_sampler=sampler, collate_fn=collate)
    net = Reader(args.hidden)
    model = DDP(net)
    opt = torch.optim.Adam(model.parameters(), lr=args.lr)
    sched = torch.optim.lr_scheduler.LinearLR(opt, 1.0, 0.1, total_iters=args.epochs * len(sampler))
    loss_fn = nn.SmoothL1Loss()
    step = 0
    for epoch in range(args.epochs):
        meter = torch.zeros(2)
        for x, lengths, y in loader:
            loss = loss_fn(model(x, lengths), y)
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            sched.step()
            step += 1
            meter += torch.tensor([loss.item(), 1.0])
            if step % args.log_every == 0:
                shown = meter.clone()
                dist.all_reduce(shown)
                if rank == 0:
                    print(f"epoch {epoch} step {step} loss {shown[0] / shown[1]:.4f}", flush=True)
        score = evaluate(net, val, rank, world)
        if rank == 0:
            print(f"epoch {epoch} val mse {score:.4f} lr {sched.get_last_lr()[0]:.5f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
