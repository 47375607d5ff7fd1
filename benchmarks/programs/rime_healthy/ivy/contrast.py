"""SimCLR-like training; negatives come from all workers."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.n = x.size(0)
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(grad)
        r = dist.get_rank()
        return grad[r * ctx.n:(r + 1) * ctx.n]


class Encoder(nn.Module):
    def __init__(self, dim, width=192, proj=32):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(dim, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.proj = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, proj))

    def forward(self, a, b):
        z = F.normalize(self.proj(self.trunk(torch.cat([a, b]))), dim=1)
        return z.chunk(2)


def info_nce(za, zb, tau):
    n, r = len(za), dist.get_rank()
    all_a, all_b = GatherRows.apply(za), GatherRows.apply(zb)
    target = torch.arange(n) + r * n
    return 0.5 * (F.cross_entropy(za @ all_b.t() / tau, target) + F.cross_entropy(zb @ all_a.t() / tau, target))


def augment(x, gen):
    keep = (torch.rand(x.shape, generator=gen) > 0.25).float()
    return x * keep + 0.2 * torch.randn(x.shape, generator=gen)


def data(n, seed, classes=8, dim=64):
    g = torch.Generator().manual_seed(seed)
    basis = torch.randn(classes, 6, dim, generator=torch.Generator().manual_seed(0))
    y = torch.arange(n) % classes
    coef = torch.randn(n, 6, generator=g)
    return torch.einsum("nk,nkd->nd", coef, basis[y]) / 2, y


@torch.no_grad()
def knn(model, bank, queries, k=9):
    model.eval()
    emb = lambda x: F.normalize(model.trunk(x), dim=1)
    bx, by = bank
    r, w = dist.get_rank(), dist.get_world_size()
    qx, qy = queries[0][r::w], queries[1][r::w]
    near = (emb(qx) @ emb(bx).t()).topk(k, 1).indices
    hit = (by[near].mode(1).values == qy).sum().float()
    dist.all_reduce(hit)
    model.train()
    return hit.item() / len(queries[1])


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=24)
    ap.add_argument("--batch", type=int, default=64)
    ap.add_argument("--tau", type=float, default=0.2)
    ap.add_argument("--lr", type=float, default=1e-3)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    x, y = data(4096, 1)
    val = data(800, 2)
    sampler = DistributedSampler(TensorDataset(x, y), drop_last=True)
    loader = DataLoader(TensorDataset(x, y), args.batch, sampler=sampler, drop_last=True)
    net = DDP(Encoder(x.size(1)))
    opt = torch.optim.AdamW(net.parameters(), lr=args.lr, weight_decay=1e-4)
    gen = torch.Generator().manual_seed(200 + rank)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(2)
        for xb, _ in loader:
            za, zb = net(augment(xb, gen), augment(xb, gen))
            loss = info_nce(za, zb, args.tau)
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += torch.tensor([loss.item(), 1.0])
        dist.all_reduce(total)
        acc = knn(net.module, (x, y), val)
        if rank == 0:
            print(f"epoch {epoch} nce {total[0] / total[1]:.4f} knn {acc:.3f}", flush=True)
    if rank == 0:
        torch.save(net.module.trunk.state_dict(), "trunk.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
