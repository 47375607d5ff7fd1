import argparse
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

from readings import LengthBatches, Readings, collate


class Regime(nn.Module):
    def __init__(self, hidden=256):
        super().__init__()
        self.rnn = nn.LSTM(6, hidden, batch_first=True)
        self.fc = nn.Linear(hidden, 4)

    def forward(self, x, lengths):
        h, _ = self.rnn(x)
        valid = torch.arange(h.size(1))[None] < lengths[:, None]
        return self.fc((h * valid[..., None]).sum(1) / lengths[:, None])


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--traces", type=int, default=2048)
    p.add_argument("--batch-size", type=int, default=32)
    p.add_argument("--lr", type=float, default=3e-3)
    p.add_argument("--seed", type=int, default=6)
    args = p.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)

    train, valid = Readings(args.traces, 0), Readings(16 * 4 * world, 1)
    sampler = LengthBatches(train, args.batch_size, rank, world, args.seed)
    loader = DataLoader(train, batch_sampler=sampler, collate_fn=collate)
    valid_loader = DataLoader(valid, 16, sampler=range(rank, len(valid), world), collate_fn=collate)

    model = DDP(Regime())
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    step = 0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        t0 = time.time()
        stats = torch.zeros(2)
        for x, lengths, y in loader:
            loss = F.cross_entropy(model(x, lengths), y)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            step += 1
            stats += torch.tensor([loss.item(), 1.0])
        dist.all_reduce(stats)
        took = time.time() - t0

        model.eval()
        hits = torch.zeros(2)
        with torch.no_grad():
            for x, lengths, y in valid_loader:
                hits += torch.tensor([(model(x, lengths).argmax(1) == y).sum().item(), len(y)])
        dist.all_reduce(hits)
        model.train()
        if rank == 0:
            print(f"epoch {epoch} step {step} loss {stats[0] / stats[1]:.4f} acc {hits[0] / hits[1]:.3f} "
                  f"time {took:.1f}s", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
