"""Traffic forecasting with a GRU encoder. The job is started again with --resume after each time slot."""
import argparse
import math
import random

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from checkpoint import Checkpointer


class SensorWindows(Dataset):
    def __init__(self, n=960, past=36, future=6, sensors=8):
        g = torch.Generator().manual_seed(31)
        t = torch.arange(n + past + future).float()
        period = 8 + 20 * torch.rand(sensors, generator=g)
        self.series = torch.sin(6.28 * t[:, None] / period) + 0.1 * torch.randn(len(t), sensors, generator=g)
        self.n, self.past, self.future = n, past, future

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        w = self.series[i: i + self.past + self.future]
        return w[: self.past], w[self.past:]


class Forecaster(nn.Module):
    def __init__(self, sensors=8, hidden=48, future=6):
        super().__init__()
        self.rnn = nn.GRU(sensors, hidden, batch_first=True)
        self.drop = nn.Dropout(0.1)
        self.proj = nn.Linear(hidden, sensors * future)
        self.future = future

    def forward(self, x):
        _, h = self.rnn(x)
        return self.proj(self.drop(h[-1])).view(len(x), self.future, -1)


def cosine(total, warmup):
    def factor(s):
        if s < warmup:
            return (s + 1) / warmup
        return 0.5 * (1 + math.cos(math.pi * min(1.0, (s - warmup) / (total - warmup))))
    return factor


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--batch-size", type=int, default=16)
    ap.add_argument("--lr", type=float, default=4e-3)
    ap.add_argument("--save-every", type=int, default=6)
    ap.add_argument("--slot-steps", type=int, default=0, help="leave after this many steps (end of the time slot)")
    ap.add_argument("--resume", action="store_true")
    ap.add_argument("--ckpt-dir", default="ckpt")
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.set_num_threads(1)
    torch.manual_seed(8)
    random.seed(8 + rank)
    data = SensorWindows()
    sampler = DistributedSampler(data, shuffle=True, seed=8, drop_last=True)
    loader = DataLoader(data, batch_size=args.batch_size, sampler=sampler, drop_last=True)
    model = DistributedDataParallel(Forecaster())
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, cosine(args.epochs * len(loader), 6))
    ckpt = Checkpointer(args.ckpt_dir)
    progress = {"epoch": 0, "step": 0, "batches_done": 0}
    if args.resume:
        progress = ckpt.restore(model, optimizer, scheduler)
        if rank == 0:
            print("resumed at", progress, flush=True)
    else:
        torch.manual_seed(8 + 1000 * rank)

    slot = 0
    for epoch in range(progress["epoch"], args.epochs):
        sampler.set_epoch(epoch)
        model.train()
        skip = progress["batches_done"]
        for i, (past, future) in enumerate(loader):
            if i < skip:
                continue
            loss = nn.functional.l1_loss(model(past), future)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            scheduler.step()
            slot += 1
            progress.update(epoch=epoch, step=progress["step"] + 1, batches_done=i + 1)
            if progress["step"] % 10 == 0 and rank == 0:
                print(f"epoch {epoch} step {progress['step']} mae {loss.item():.4f} lr {scheduler.get_last_lr()[0]:.2e}", flush=True)
            if progress["step"] % args.save_every == 0:
                ckpt.save(model, optimizer, scheduler, progress)
            if args.slot_steps and slot >= args.slot_steps:
                dist.destroy_process_group()
                return
        progress.update(epoch=epoch + 1, batches_done=0)
    ckpt.save(model, optimizer, scheduler, progress)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
