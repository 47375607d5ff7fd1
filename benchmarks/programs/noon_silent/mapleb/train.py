"""Keyword spotting on synthetic spectrogram clips."""
import argparse
import math

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def cosine_schedule_with_warmup(optimizer, num_warmup_steps, num_training_steps):
    def fn(step):
        if step < num_warmup_steps:
            return step / max(1, num_warmup_steps)
        progress = (step - num_warmup_steps) / max(1, num_training_steps - num_warmup_steps)
        return max(0.0, 0.5 * (1 + math.cos(math.pi * min(1.0, progress))))

    return torch.optim.lr_scheduler.LambdaLR(optimizer, fn)


class PreparedScheduler:
    """Scheduler seen by the training loop; counts in optimizer steps."""

    def __init__(self, scheduler, split_batches=False):
        self.scheduler = scheduler
        self.split_batches = split_batches

    def step(self):
        self.scheduler.step()

    def get_last_lr(self):
        return self.scheduler.get_last_lr()


class KeywordNet(nn.Module):
    def __init__(self, n_mels, num_classes, width=64):
        super().__init__()
        self.front = nn.Sequential(nn.Conv1d(n_mels, width, 5, 2, 2), nn.ReLU(), nn.Conv1d(width, width, 5, 2, 2), nn.ReLU())
        self.rnn = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, num_classes)

    def forward(self, x):
        h, _ = self.rnn(self.front(x).transpose(1, 2))
        return self.head(h.mean(1))


def make_clips(n, n_mels=20, frames=48, classes=10, seed=0):
    g = torch.Generator().manual_seed(seed)
    proto = torch.randn(classes, n_mels, 12, generator=torch.Generator().manual_seed(123))
    y = torch.randint(0, classes, (n,), generator=g)
    x = torch.randn(n, n_mels, frames, generator=g) * 1.3
    start = torch.randint(0, frames - 12, (n,), generator=g)
    for i in range(n):
        x[i, :, start[i]:start[i] + 12] += proto[y[i]]
    return x, y


@torch.no_grad()
def evaluate(model, x, y):
    model.eval()
    share = slice(dist.get_rank(), None, dist.get_world_size())
    hit = torch.tensor([(model(x[share]).argmax(1) == y[share]).sum().item(), len(y[share])], dtype=torch.float64)
    dist.all_reduce(hit)
    model.train()
    return (hit[0] / hit[1]).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=8)
    ap.add_argument("--batch-size", type=int, default=32)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--warmup-steps", type=int, default=12)
    ap.add_argument("--seed", type=int, default=3)
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(args.seed)
    train, val = make_clips(2048, seed=1), make_clips(400, seed=2)
    ds = TensorDataset(*train)
    sampler = DistributedSampler(ds, shuffle=True, seed=args.seed, drop_last=True)
    loader = DataLoader(ds, args.batch_size, sampler=sampler, drop_last=True)

    model = DDP(KeywordNet(20, 10))
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    num_training_steps = args.epochs * len(loader)
    scheduler = PreparedScheduler(cosine_schedule_with_warmup(opt, args.warmup_steps, num_training_steps))

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        total = 0.0
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            scheduler.step()
            total += loss.item()
        acc = evaluate(model.module, *val)
        if rank == 0:
            print(f"epoch {epoch} loss {total / len(loader):.4f} acc {acc:.3f} lr {scheduler.get_last_lr()[0]:.2e}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
