import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Forecaster(nn.Module):
    def __init__(self, hidden=64):
        super().__init__()
        self.rnn = nn.LSTM(3, hidden, num_layers=2, batch_first=True)
        self.out = nn.Linear(hidden, 3)

    def forward(self, x):
        return self.out(self.rnn(x)[0])


def series(n, length, seed):
    g = torch.Generator().manual_seed(seed)
    t = torch.arange(length + 1).float()
    f = 0.1 + 0.4 * torch.rand(n, 1, 3, generator=g)
    ph = 6.283 * torch.rand(n, 1, 3, generator=g)
    s = torch.sin(f * t[None, :, None] + ph) + 0.05 * torch.randn(n, length + 1, 3, generator=g)
    return TensorDataset(s[:, :-1], s[:, 1:])


def save(path, model, opt, sched, epoch):
    opt.consolidate_state_dict(to=0)
    if dist.get_rank() == 0:
        tmp = path + ".tmp"
        torch.save({"model": model.module.state_dict(), "opt": opt.state_dict(), "sched": sched.state_dict(), "epoch": epoch}, tmp)
        os.replace(tmp, path)
    dist.barrier()


def load(path, model, opt, sched):
    ck = torch.load(path, map_location="cpu", weights_only=True)
    model.module.load_state_dict(ck["model"])
    opt.load_state_dict(ck["opt"])
    sched.load_state_dict(ck["sched"])
    return ck["epoch"] + 1


@torch.no_grad()
def validate(model, loader):
    model.eval()
    t = torch.zeros(2)
    for x, y in loader:
        t += torch.stack([F.mse_loss(model(x), y, reduction="sum"), torch.tensor(float(y.numel()))])
    dist.all_reduce(t)
    model.train()
    return (t[0] / t[1]).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--total-epochs", type=int, default=8)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--ckpt", default="last.pt")
    ap.add_argument("--resume", action="store_true")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    train, val = series(1024, 40, 1), series(256, 40, 2)
    sampler = DistributedSampler(train, seed=1)
    loader = DataLoader(train, args.batch, sampler=sampler)
    vloader = DataLoader(val, 64, sampler=DistributedSampler(val, shuffle=False))
    model = DDP(Forecaster())
    opt = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.Adam, lr=3e-3)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, args.total_epochs)
    first = load(args.ckpt, model, opt, sched) if args.resume else 0
    for epoch in range(first, args.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = F.mse_loss(model(x), y)
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
        sched.step()
        v = validate(model.module, vloader)
        if rank == 0:
            print(f"epoch {epoch} lr {sched.get_last_lr()[0]:.2e} loss {loss.item():.4f} val {v:.4f}", flush=True)
        save(args.ckpt, model, opt, sched, epoch)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
