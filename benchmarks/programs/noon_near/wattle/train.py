import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from moe import MoELayer


class Layout:
    """world = expert-parallel size x replicas; consecutive ranks share one expert set."""

    def __init__(self, ep_size):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.ep_size = ep_size
        self.replicas = self.world // ep_size
        for r in range(self.replicas):
            ranks = list(range(r * ep_size, (r + 1) * ep_size))
            group = dist.new_group(ranks)
            if self.rank in ranks:
                self.ep_group, self.ep_rank = group, ranks.index(self.rank)
        for e in range(ep_size):
            ranks = list(range(e, self.world, ep_size))
            group = dist.new_group(ranks)
            if self.rank in ranks:
                self.replica_group = group


class SwitchRegressor(nn.Module):
    def __init__(self, d_in, dim, layout, seed):
        super().__init__()
        self.inp = nn.Linear(d_in, dim)
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(2))
        self.moes = nn.ModuleList(MoELayer(dim, 4 * dim, 4, layout.ep_group, layout.ep_rank, layout.ep_size,
                                           seed + 10 * i) for i in range(2))
        self.out = nn.Linear(dim, 4)

    def forward(self, x):
        h = self.inp(x)
        for norm, moe in zip(self.norms, self.moes):
            h = h + moe(norm(h))
        return self.out(h)


def sync_gradients(model, layout):
    dense, expert = [], []
    for p in model.parameters():
        (expert if getattr(p, "is_expert", False) else dense).append(p.grad)
    for grads, group, size in ((dense, None, layout.world), (expert, layout.replica_group, layout.replicas)):
        flat = torch.cat([g.reshape(-1) for g in grads])
        dist.all_reduce(flat, group=group)
        flat /= size
        offset = 0
        for g in grads:
            g.copy_(flat[offset:offset + g.numel()].view_as(g))
            offset += g.numel()


class Regions:
    def __init__(self, rank, d_in=24, seed=0):
        shared = torch.Generator().manual_seed(seed)
        self.centers = torch.randn(4, d_in, generator=shared) * 2
        self.maps = torch.randn(4, d_in, 4, generator=shared) / d_in ** 0.5
        self.g = torch.Generator().manual_seed(seed + 100 + rank)

    def batch(self, n):
        k = torch.randint(0, 4, (n,), generator=self.g)
        x = self.centers[k] + torch.randn(n, self.centers.shape[1], generator=self.g)
        return x, torch.einsum("nd,ndo->no", x, self.maps[k])


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=100)
    ap.add_argument("--batch-size", type=int, default=768)
    ap.add_argument("--ep-size", type=int, default=2)
    ap.add_argument("--dim", type=int, default=128)
    ap.add_argument("--lr", type=float, default=0.02)
    args = ap.parse_args()

    dist.init_process_group("gloo")
    layout = Layout(args.ep_size)
    torch.manual_seed(17)
    model = SwitchRegressor(24, args.dim, layout, seed=40)
    opt = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    data = Regions(layout.rank)
    for step in range(args.steps):
        x, y = data.batch(args.batch_size)
        mse = F.mse_loss(model(x), y)
        loss = mse + 0.01 * sum(m.balance for m in model.moes)
        opt.zero_grad()
        loss.backward()
        sync_gradients(model, layout)
        opt.step()
        if layout.rank == 0 and step % 20 == 0:
            print(f"step {step:3d} mse {mse.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
