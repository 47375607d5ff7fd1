"""Image-like classification with plain batch norm; statistics are reconciled before evaluation."""
import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Shapes(Dataset):
    def __init__(self, n, seed, train=True):
        g = torch.Generator().manual_seed(seed)
        self.y = torch.randint(0, 4, (n,), generator=g)
        yy, xx = torch.meshgrid(torch.arange(14.0), torch.arange(14.0), indexing="ij")
        out = []
        for c in self.y.tolist():
            cy, cx = (4 + 6 * torch.rand(2, generator=g)).tolist()
            r = ((yy - cy) ** 2 + (xx - cx) ** 2).sqrt()
            m = [r < 3, (r - 3).abs() < 0.8, (yy - cy).abs() < 1, (yy - cy - xx + cx).abs() < 1][c]
            out.append(m.float())
        self.x = torch.stack(out)[:, None] + 0.5 * torch.randn(n, 1, 14, 14, generator=g)
        self.train = train
        self.g = torch.Generator().manual_seed(seed * 31 + dist.get_rank())

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        x = self.x[i]
        if self.train and torch.rand((), generator=self.g) < 0.5:
            x = x.flip(-1) if self.y[i] != 3 else x.flip(-1).flip(-2)
        return i, x, self.y[i]


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        blk = lambda i, o, s: nn.Sequential(nn.Conv2d(i, o, 3, s, 1, bias=False), nn.BatchNorm2d(o, momentum=0.1), nn.ReLU())
        self.body = nn.Sequential(blk(1, 16, 1), blk(16, 24, 2), blk(24, 32, 2))
        self.head = nn.Linear(32, 4)

    def forward(self, x):
        return self.head(self.body(x).mean((2, 3)))


@torch.no_grad()
def reconcile_bn(net):
    """Pool mean and variance of the running statistics over ranks (law of total variance)."""
    bns = [m for m in net.modules() if isinstance(m, nn.BatchNorm2d)]
    mean = torch.cat([b.running_mean for b in bns])
    second = torch.cat([b.running_var for b in bns]) + mean ** 2
    buf = torch.stack([mean, second])
    dist.all_reduce(buf)
    buf /= dist.get_world_size()
    mean, var = buf[0], (buf[1] - buf[0] ** 2).clamp(min=0)
    off = 0
    for b in bns:
        n = b.num_features
        b.running_mean.copy_(mean[off:off + n])
        b.running_var.copy_(var[off:off + n])
        off += n


class PaddedGather:
    """Collects (index, prediction) of a padded distributed pass and keeps each index once."""

    def __init__(self, n):
        self.n = n
        self.rows = []

    def add(self, idx, pred):
        self.rows.append(torch.stack([idx, pred], 1))

    def result(self):
        mine = torch.cat(self.rows)
        size = torch.tensor([len(mine)])
        dist.all_reduce(size, op=dist.ReduceOp.MAX)
        pad = torch.full((int(size) - len(mine), 2), -1)
        parts = [torch.empty(int(size), 2, dtype=torch.long) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, torch.cat([mine, pad]))
        out = torch.full((self.n,), -1)
        for idx, pred in torch.cat(parts).tolist():
            if idx >= 0:
                out[idx] = pred
        assert (out >= 0).all()
        return out


@torch.no_grad()
def evaluate(net, loader, ds):
    net.eval()
    col = PaddedGather(len(ds))
    for i, x, _ in loader:
        col.add(i, net(x).argmax(1))
    net.train()
    return (col.result() == ds.y).double().mean().item()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--batch", type=int, default=24)
    p.add_argument("--base-lr", type=float, default=0.05)
    p.add_argument("--warmup", type=int, default=10)
    p.add_argument("--seed", type=int, default=28)
    p.add_argument("--out", default="shape_out")
    a = p.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(a.seed)
    train, test = Shapes(720, 1), Shapes(203, 2, train=False)
    sampler = DistributedSampler(train, seed=a.seed)
    loader = DataLoader(train, a.batch, sampler=sampler)
    test_loader = DataLoader(test, 32, sampler=DistributedSampler(test, shuffle=False))
    net = ConvNet()
    model = DDP(net, forward_sync_buffers=False)
    lr = a.base_lr * a.batch * world / 48
    opt = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=5e-4, nesterov=True)
    total = a.epochs * len(loader)
    sched = torch.optim.lr_scheduler.SequentialLR(opt, [
        torch.optim.lr_scheduler.LinearLR(opt, 0.1, total_iters=a.warmup),
        torch.optim.lr_scheduler.CosineAnnealingLR(opt, total - a.warmup)], [a.warmup])
    best = 0.0
    for epoch in range(a.epochs):
        sampler.set_epoch(epoch)
        t0, s = time.time(), torch.zeros(2)
        for _, x, y in loader:
            loss = F.cross_entropy(model(x), y, label_smoothing=0.05)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            sched.step()
            s += torch.tensor([loss.item() * len(y), len(y)])
        dist.all_reduce(s)
        reconcile_bn(net)
        acc = evaluate(net, test_loader, test)
        if rank == 0:
            print(f"epoch {epoch} loss {s[0] / s[1]:.4f} acc {acc:.4f} lr {opt.param_groups[0]['lr']:.4f} {time.time() - t0:.1f}s", flush=True)
            if acc > best:
                os.makedirs(a.out, exist_ok=True)
                torch.save(net.state_dict(), os.path.join(a.out, "best.pt"))
        best = max(best, acc)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
