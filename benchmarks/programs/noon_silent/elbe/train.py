"""Tensor-parallel encoder inside a group of two, data-parallel across groups."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

TP = 2


class Layout:
    def __init__(self):
        rank, world = dist.get_rank(), dist.get_world_size()
        self.tp_rank, self.dp_rank = rank % TP, rank // TP
        self.dp_size = world // TP
        for d in range(self.dp_size):
            ranks = list(range(d * TP, d * TP + TP))
            group = dist.new_group(ranks)
            if rank in ranks:
                self.tp_group = group
        for t in range(TP):
            ranks = list(range(t, world, TP))
            group = dist.new_group(ranks)
            if rank in ranks:
                self.dp_group = group


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x

    @staticmethod
    def backward(ctx, g):
        g = g.contiguous().clone()
        dist.all_reduce(g, group=ctx.group)
        return g, None


class _Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        x = x.contiguous().clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, g):
        return g, None


class TPMLP(nn.Module):
    def __init__(self, dim, hidden, lay):
        super().__init__()
        self.lay = lay
        self.up = nn.Linear(dim, hidden // TP)
        self.down = nn.Linear(hidden // TP, dim, bias=False)
        self.bias = nn.Parameter(torch.zeros(dim))
        for p in list(self.up.parameters()) + [self.down.weight]:
            p.tensor_sharded = True

    def forward(self, x):
        x = _Copy.apply(x, self.lay.tp_group)
        return _Reduce.apply(self.down(F.gelu(self.up(x))), self.lay.tp_group) + self.bias


class Net(nn.Module):
    def __init__(self, lay, in_dim=64, dim=128, hidden=512, depth=3, classes=12):
        super().__init__()
        self.inp = nn.Linear(in_dim, dim)
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(depth))
        self.mlps = nn.ModuleList(TPMLP(dim, hidden, lay) for _ in range(depth))
        self.drop = nn.Dropout(0.1)
        self.out = nn.Linear(dim, classes)

    def forward(self, x):
        h = self.inp(x)
        for n, m in zip(self.norms, self.mlps):
            h = h + self.drop(m(n(h)))
        return self.out(h)


def build(lay, seed):
    torch.manual_seed(seed)
    net = Net(lay)
    own = torch.Generator().manual_seed(seed + 10 + lay.tp_rank)
    for p in net.parameters():
        if getattr(p, "tensor_sharded", False):
            with torch.no_grad():
                p.uniform_(-0.06, 0.06, generator=own)
    return net


def average_over_data_group(net, lay):
    flat = torch.cat([p.grad.reshape(-1) for p in net.parameters()])
    dist.all_reduce(flat, group=lay.dp_group)
    flat /= lay.dp_size
    offset = 0
    for p in net.parameters():
        p.grad.copy_(flat[offset:offset + p.numel()].view_as(p))
        offset += p.numel()


def clip(net, lay, limit):
    sharded = sum(p.grad.pow(2).sum() for p in net.parameters() if getattr(p, "tensor_sharded", False))
    whole = sum(p.grad.pow(2).sum() for p in net.parameters() if not getattr(p, "tensor_sharded", False))
    dist.all_reduce(sharded, group=lay.tp_group)
    norm = (sharded + whole).sqrt()
    for p in net.parameters():
        p.grad.mul_((limit / (norm + 1e-6)).clamp(max=1.0))
    return norm


def make_data(n, seed=0):
    g = torch.Generator().manual_seed(seed)
    w1 = torch.randn(64, 32, generator=torch.Generator().manual_seed(1)) / 8
    w2 = torch.randn(32, 12, generator=torch.Generator().manual_seed(2))
    x = torch.randn(n, 64, generator=g)
    return TensorDataset(x, (torch.relu(x @ w1) @ w2).argmax(1))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--batch-size", type=int, default=128)
    ap.add_argument("--lr", type=float, default=2e-3)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    lay = Layout()
    net = build(lay, seed=33)
    torch.manual_seed(3300 + lay.dp_rank)
    ds = make_data(8192)
    sampler = DistributedSampler(ds, num_replicas=lay.dp_size, rank=lay.dp_rank, shuffle=True, drop_last=True)
    loader = DataLoader(ds, args.batch_size, sampler=sampler, drop_last=True)
    opt = torch.optim.AdamW(net.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        total = 0.0
        for x, y in loader:
            loss = F.cross_entropy(net(x), y)
            opt.zero_grad()
            loss.backward()
            average_over_data_group(net, lay)
            norm = clip(net, lay, 1.0)
            opt.step()
            total += loss.item()
        mean = torch.tensor(total / len(loader))
        dist.all_reduce(mean)
        if dist.get_rank() == 0:
            print(f"epoch {epoch} loss {mean.item() / dist.get_world_size():.4f} gnorm {norm.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
