"""Small convolutional net with tiny local batches and hand-synchronised batch normalisation."""
import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from bn import SharedBatchNorm


def blobs(n, seed, size=12):
    """Count the bright spots of a picture: one to four."""
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(1, 5, (n,), generator=g)
    grid = torch.stack(torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij"), -1).float()
    img = torch.zeros(n, size, size)
    cells = torch.tensor([[2, 2], [2, 6], [2, 10], [6, 2], [6, 6], [6, 10], [10, 2], [10, 6], [10, 10]]).float()
    for i in range(n):
        for c in cells[torch.randperm(9, generator=g)[: int(y[i])]]:
            at = c + torch.rand(2, generator=g) - 0.5
            img[i] += torch.exp(-(grid - at).pow(2).sum(-1) / 1.2)
    gain = 0.7 + 0.6 * torch.rand(n, 1, 1, generator=g)
    return TensorDataset((img * gain + 0.15 * torch.randn(n, size, size, generator=g))[:, None], y - 1)


def unit(a, b, stride=1):
    return nn.Sequential(nn.Conv2d(a, b, 3, padding=1, stride=stride, bias=False), SharedBatchNorm(b), nn.ReLU())


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(unit(1, 16), unit(16, 24, 2), unit(24, 24))
        self.out = nn.Sequential(nn.Linear(24, 32), SharedBatchNorm(32), nn.ReLU(), nn.Linear(32, 4))

    def forward(self, x):
        return self.out(self.body(x).mean((2, 3)))


class Engine:
    """Process function plus handlers, in the way of event-driven training loops."""

    def __init__(self, process):
        self.process, self.handlers, self.epoch, self.iteration = process, {}, 0, 0

    def on(self, event):
        def add(fn):
            self.handlers.setdefault(event, []).append(fn)
            return fn
        return add

    def fire(self, event):
        for fn in self.handlers.get(event, []):
            fn(self)

    def run(self, loader, epochs):
        for self.epoch in range(epochs):
            self.fire("epoch_started")
            self.outputs = []
            for batch in loader:
                self.outputs.append(self.process(self, batch))
                self.iteration += 1
            self.fire("epoch_completed")


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=5)
    ap.add_argument("--batch", type=int, default=8)
    ap.add_argument("--lr", type=float, default=0.04)
    ap.add_argument("--seed", type=int, default=77)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)
    model = DDP(Counter(), forward_sync_buffers=False)
    train, held = blobs(640, 1), blobs(240, 2)
    sampler = DistributedSampler(train, seed=args.seed)
    loader = DataLoader(train, batch_size=args.batch, sampler=sampler)
    opt = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, args.lr, total_steps=args.epochs * len(loader))

    def step(engine, batch):
        x, y = batch
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        sched.step()
        return loss.detach()

    trainer = Engine(step)

    @trainer.on("epoch_started")
    def begin(engine):
        sampler.set_epoch(engine.epoch)
        model.train()

    @trainer.on("epoch_completed")
    @torch.no_grad()
    def judge(engine):
        model.eval()
        x, y = (t[rank::world] for t in held.tensors)
        s = torch.stack([torch.stack(engine.outputs).mean() / world, (model.module(x).argmax(1) == y).float().sum(), torch.tensor(float(len(y)))])
        dist.all_reduce(s)
        if rank == 0:
            print(f"epoch {engine.epoch} loss {s[0].item():.4f} accuracy {(s[1] / s[2]).item():.3f} of {int(s[2])}", flush=True)

    @trainer.on("epoch_completed")
    def save(engine):
        if rank == 0:
            os.makedirs("runs/rue", exist_ok=True)
            torch.save({"model": model.module.state_dict(), "epoch": engine.epoch}, "runs/rue/last.pt")

    trainer.run(loader, args.epochs)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
