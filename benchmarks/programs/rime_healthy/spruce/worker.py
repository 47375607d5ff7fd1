import copy

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def task(n, seed, shift, dim=64, classes=7):
    g = torch.Generator().manual_seed(seed)
    g0 = torch.Generator().manual_seed(0)
    mix, c = torch.randn(dim, dim, generator=g0) / 8, torch.randn(classes, dim, generator=g0)
    y = torch.arange(n) % classes
    x = torch.tanh((0.5 * c[(y + shift) % classes] + torch.randn(n, dim, generator=g)) @ mix)
    return TensorDataset(x, y)


class Net(nn.Module):
    def __init__(self, dim=64, classes=7):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(dim, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU())
        self.head = nn.Linear(256, classes)

    def forward(self, x):
        return self.head(self.trunk(x))


def average(x):
    t = torch.tensor([float(x)])
    dist.all_reduce(t)
    return t.item() / dist.get_world_size()


def find_lr(net, loader, low=1e-4, high=1.0, steps=40):
    """Exponential sweep on a throw-away copy; the curve is averaged so all workers choose the same value."""
    probe = DDP(copy.deepcopy(net))
    opt = torch.optim.SGD([p for p in probe.parameters() if p.requires_grad], lr=low, momentum=0.9)
    it, curve, best = iter(loader), [], float("inf")
    for k in range(steps):
        lr = low * (high / low) ** (k / (steps - 1))
        for g in opt.param_groups:
            g["lr"] = lr
        x, y = next(it)
        loss = F.cross_entropy(probe(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        now = average(loss.detach())
        curve.append((now, lr))
        best = min(best, now)
        if now > 3 * best:
            break
    return min(curve)[1] / 5


@torch.no_grad()
def validate(net, ds):
    r, w = dist.get_rank(), dist.get_world_size()
    net.eval()
    x, y = ds.tensors[0][r::w], ds.tensors[1][r::w]
    s = F.cross_entropy(net(x), y, reduction="sum")
    dist.all_reduce(s)
    net.train()
    return s.item() / len(ds)


def phase(name, net, loader, sampler, val, epochs, patience, offset):
    rank = dist.get_rank()
    lr = find_lr(net, loader)
    model = DDP(net)
    opt = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=lr, momentum=0.9, weight_decay=1e-4)
    warm = len(loader)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / warm))
    best, bad, keep = float("inf"), 0, None
    for epoch in range(epochs):
        sampler.set_epoch(offset + epoch)
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            sched.step()
        v = validate(net, val)
        stop = torch.zeros(1)
        if rank == 0:
            bad = 0 if v < best - 1e-4 else bad + 1
            stop[0] = float(bad >= patience)
            print(f"{name} epoch {epoch} lr {lr:.3g} train {loss.item():.4f} val {v:.4f}", flush=True)
        if v < best:
            best, keep = v, copy.deepcopy(net.state_dict())
        dist.broadcast(stop, src=0)
        if stop.item():
            break
    net.load_state_dict(keep)
    return best


def work(rank, args):
    dist.init_process_group("gloo", rank=rank, world_size=args.world)
    torch.manual_seed(0)
    net = Net()
    train, val = task(4480, 1, 0), task(1400, 2, 0)
    sampler = DistributedSampler(train, seed=3)
    loader = DataLoader(train, args.batch, sampler=sampler)
    phase("pretrain", net, loader, sampler, val, args.head_epochs, args.patience, 0)

    train, val = task(4480, 3, 2), task(1400, 4, 2)
    sampler = DistributedSampler(train, seed=4)
    loader = DataLoader(train, args.batch, sampler=sampler)
    nn.init.zeros_(net.head.weight)
    nn.init.zeros_(net.head.bias)
    net.trunk.requires_grad_(False)
    phase("head", net, loader, sampler, val, args.head_epochs, args.patience, 0)
    net.trunk.requires_grad_(True)
    best = phase("all", net, loader, sampler, val, args.epochs, args.patience, args.head_epochs)
    if rank == 0:
        torch.save({"net": net.state_dict(), "val": best}, "tuned.pt")
    dist.barrier()
    dist.destroy_process_group()
