"""Post-local SGD: synchronous warm-up, then several local steps between model averages."""
import argparse
import logging
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

log = logging.getLogger("localsgd")


@dataclass
class Plan:
    epochs: int = 5
    batch: int = 20
    lr: float = 0.08
    momentum: float = 0.9
    sync_steps: int = 12
    period: int = 7
    average_momentum: bool = True
    seed: int = 33


def data(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 12, generator=g)
    w = torch.randn(12, 24, generator=torch.Generator().manual_seed(1))
    v = torch.randn(24, 5, generator=torch.Generator().manual_seed(2))
    return TensorDataset(x, ((x @ w).relu() @ v + 0.5 * torch.randn(n, 5, generator=g)).argmax(1))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Sequential(nn.Linear(12, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Linear(48, 48), nn.BatchNorm1d(48), nn.ReLU())
        self.h = nn.Linear(48, 5)

    def forward(self, x):
        return self.h(self.f(x))


@torch.no_grad()
def average(tensors):
    flat = torch.cat([t.reshape(-1) for t in tensors])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    off = 0
    for t in tensors:
        t.copy_(flat[off:off + t.numel()].view_as(t))
        off += t.numel()


class LocalSGD:
    def __init__(self, net, opt, plan):
        self.net, self.opt, self.plan = net, opt, plan
        self.step_no, self.since = 0, 0
        for t in list(net.parameters()) + list(net.buffers()):
            dist.broadcast(t.data, 0)

    def state(self):
        out = list(self.net.parameters())
        out += [b for b in self.net.buffers() if b.is_floating_point()]
        if self.plan.average_momentum:
            out += [self.opt.state[p]["momentum_buffer"] for p in self.net.parameters() if "momentum_buffer" in self.opt.state[p]]
        return out

    def average_models(self):
        average(self.state())
        self.since = 0

    def step(self):
        if self.step_no < self.plan.sync_steps:
            average([p.grad for p in self.net.parameters()])
            self.opt.step()
            if self.step_no + 1 == self.plan.sync_steps:
                self.average_models()
        else:
            self.opt.step()
            self.since += 1
            if self.since == self.plan.period:
                self.average_models()
        self.step_no += 1

    def flush(self):
        if self.since or self.step_no <= self.plan.sync_steps:
            self.average_models()


@torch.no_grad()
def drift(net):
    v = torch.cat([p.reshape(-1) for p in net.parameters()])
    m = v.clone()
    dist.all_reduce(m)
    d = (v - m / dist.get_world_size()).norm() / v.norm()
    dist.all_reduce(d, op=dist.ReduceOp.MAX)
    return d.item()


@torch.no_grad()
def accuracy(net, ds):
    net.eval()
    x, y = (t[dist.get_rank()::dist.get_world_size()] for t in ds.tensors)
    t = torch.tensor([(net(x).argmax(1) == y).sum(), len(y)], dtype=torch.float64)
    dist.all_reduce(t)
    net.train()
    return (t[0] / t[1]).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=5)
    ap.add_argument("--period", type=int, default=7)
    a = ap.parse_args()
    plan = Plan(epochs=a.epochs, period=a.period)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.ERROR, format="%(message)s")
    torch.manual_seed(plan.seed + rank)
    train, test = data(1200, 5), data(400, 6)
    sampler = DistributedSampler(train, seed=plan.seed)
    loader = DataLoader(train, plan.batch, sampler=sampler)
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=plan.lr, momentum=plan.momentum, weight_decay=1e-4)
    sched = torch.optim.lr_scheduler.MultiStepLR(opt, [3, 4], gamma=0.3)
    runner = LocalSGD(net, opt, plan)
    for epoch in range(plan.epochs):
        sampler.set_epoch(epoch)
        tot, worst = torch.zeros(2), 0.0
        for x, y in loader:
            loss = F.cross_entropy(net(x), y)
            opt.zero_grad()
            loss.backward()
            runner.step()
            tot += torch.tensor([loss.item(), 1.0])
        worst = drift(net)
        runner.flush()
        sched.step()
        dist.all_reduce(tot)
        log.info("epoch %d loss %.4f acc %.3f drift before average %.2e after %.1e", epoch, tot[0] / tot[1], accuracy(net, test),
                 worst, drift(net))
    if rank == 0:
        torch.save(net.state_dict(), "localsgd.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
