"""Multi-task training (classification and regression heads on one trunk) with loss scaling."""
import argparse
import logging
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

log = logging.getLogger("mtl")


def tasks(n, seed):
    g = torch.Generator().manual_seed(seed)
    w = torch.Generator().manual_seed(7)
    x = torch.randn(n, 24, generator=g)
    h = (x @ torch.randn(24, 16, generator=w)).tanh()
    y = (h @ torch.randn(16, 5, generator=w)).argmax(1)
    r = h @ torch.randn(16, 2, generator=w) / 4 + 0.1 * torch.randn(n, 2, generator=g)
    return TensorDataset(x, y, r)


class MultiTask(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(24, width), nn.LayerNorm(width), nn.GELU(), nn.Linear(width, width), nn.GELU())
        self.cls = nn.Linear(width, 5)
        self.reg = nn.Linear(width, 2)
        self.log_var = nn.Parameter(torch.zeros(2))

    def forward(self, x, y, r):
        h = self.trunk(x)
        a = F.cross_entropy(self.cls(h).float(), y)
        b = F.mse_loss(self.reg(h).float(), r)
        lv = self.log_var
        total = a * torch.exp(-lv[0]) + 0.5 * b * torch.exp(-lv[1]) + 0.5 * lv.sum()
        return total, a.detach(), b.detach()


class AmpStepper:
    """backward / clip / step with a gradient scaler and optional accumulation."""

    def __init__(self, model, opt, max_norm, init_scale, accum):
        self.model, self.opt, self.max_norm, self.accum = model, opt, max_norm, accum
        self.scaler = torch.amp.GradScaler("cpu", init_scale=init_scale, growth_interval=200)
        self.count = 0
        self.skipped = 0

    @property
    def boundary(self):
        return (self.count + 1) % self.accum == 0

    def backward(self, loss):
        self.scaler.scale(loss / self.accum).backward()

    def step(self):
        self.scaler.unscale_(self.opt)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.max_norm)
        before = self.scaler.get_scale()
        self.scaler.step(self.opt)
        self.scaler.update()
        self.skipped += self.scaler.get_scale() < before
        self.opt.zero_grad(set_to_none=True)

    def __call__(self, batch, dtype):
        self.model.require_backward_grad_sync = self.boundary
        with torch.autocast("cpu", dtype=dtype):
            loss, a, b = self.model(*batch)
        self.backward(loss)
        done = self.boundary
        if done:
            self.step()
        self.count += 1
        return a, b, done


@torch.no_grad()
def evaluate(net, ds):
    net.eval()
    x, y, r = (t[dist.get_rank()::dist.get_world_size()] for t in ds.tensors)
    h = net.trunk(x)
    t = torch.tensor([(net.cls(h).argmax(1) == y).sum(), (net.reg(h) - r).abs().mean(1).sum(), len(y)], dtype=torch.float64)
    dist.all_reduce(t)
    net.train()
    return (t[0] / t[2]).item(), (t[1] / t[2]).item()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=4)
    p.add_argument("--batch", type=int, default=16)
    p.add_argument("--accum", type=int, default=2)
    p.add_argument("--lr", type=float, default=3e-3)
    p.add_argument("--clip", type=float, default=1.0)
    p.add_argument("--init-scale", type=float, default=2.0 ** 14)
    p.add_argument("--seed", type=int, default=61)
    p.add_argument("--out", default="mtl_out")
    a = p.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.ERROR, format="%(message)s")
    torch.manual_seed(a.seed)
    train, test = tasks(1024, 1), tasks(300, 2)
    sampler = DistributedSampler(train, seed=a.seed)
    loader = DataLoader(train, a.batch, sampler=sampler)
    model = DDP(MultiTask())
    opt = torch.optim.AdamW(model.parameters(), lr=a.lr, weight_decay=1e-3)
    updates = a.epochs * len(loader) // a.accum
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, updates)
    stepper = AmpStepper(model, opt, a.clip, a.init_scale, a.accum)
    for epoch in range(a.epochs):
        sampler.set_epoch(epoch)
        s = torch.zeros(3)
        for batch in loader:
            la, lb, done = stepper(batch, torch.bfloat16)
            if done:
                sched.step()
            s += torch.stack([la, lb, torch.tensor(1.0)])
        dist.all_reduce(s)
        acc, mae = evaluate(model.module, test)
        log.info("epoch %d ce %.4f mse %.4f acc %.3f mae %.4f scale %g skipped %d w %s", epoch, s[0] / s[2], s[1] / s[2], acc, mae,
                 stepper.scaler.get_scale(), stepper.skipped, [round(v, 3) for v in model.module.log_var.tolist()])
    if rank == 0:
        os.makedirs(a.out, exist_ok=True)
        torch.save({"model": model.module.state_dict(), "scaler": stepper.scaler.state_dict(), "opt": opt.state_dict()},
                   os.path.join(a.out, "mtl.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
