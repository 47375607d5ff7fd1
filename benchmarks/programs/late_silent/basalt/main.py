"""Private training (Abadi et al. 2016): per-example clipping, noise, then the mean over all workers."""
import argparse
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad, vmap


def patients(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 8, generator=g)
    risk = 1.5 * x[:, 0] - x[:, 1] * x[:, 2] + 0.5 * x[:, 3]
    return x, (risk + 0.5 * torch.randn(n, generator=g) > 0).long()


class PrivateGradients:
    def __init__(self, net, bound, noise, rank, world, seed):
        self.net, self.bound, self.noise, self.world = net, bound, noise, world
        self.gen = torch.Generator().manual_seed(seed * 31 + rank)
        self.per_example = vmap(grad(self.loss), in_dims=(None, 0, 0))

    def loss(self, weights, x, y):
        return F.cross_entropy(functional_call(self.net, weights, (x[None],)), y[None])

    @torch.no_grad()
    def fill(self, x, y):
        weights = {k: v.detach() for k, v in self.net.named_parameters()}
        grads = self.per_example(weights, x, y)
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in grads.values()]).norm(dim=0)
        scale = (self.bound / (norms + 1e-6)).clamp(max=1.0)
        count = len(x) * self.world
        for name, p in self.net.named_parameters():
            total = torch.einsum("n,n...->...", scale, grads[name])
            # independent shares: variances of the workers add up to (noise * bound) ** 2
            share = self.noise * self.bound / self.world ** 0.5
            total += share * torch.randn(p.shape, generator=self.gen)
            dist.all_reduce(total)
            p.grad = total / count
        return (norms > self.bound).float().mean()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=120)
    ap.add_argument("--batch", type=int, default=64)
    ap.add_argument("--bound", type=float, default=1.0)
    ap.add_argument("--noise", type=float, default=0.8)
    ap.add_argument("--lr", type=float, default=0.4)
    ap.add_argument("--seed", type=int, default=51)
    ap.add_argument("--out", type=Path, default=Path(__file__).resolve().parent / "out")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)
    net = nn.Sequential(nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, 2))
    private = PrivateGradients(net, args.bound, args.noise, rank, world, args.seed)
    opt = torch.optim.SGD(net.parameters(), lr=args.lr, momentum=0.5)
    x, y = patients(4096, args.seed)
    xv, yv = patients(600, args.seed + 1)
    gen = torch.Generator().manual_seed(args.seed + 3)

    for step in range(1, args.steps + 1):
        pick = torch.randperm(len(x), generator=gen)[:args.batch * world].chunk(world)[rank]
        clipped = private.fill(x[pick], y[pick])
        opt.step()
        if step % 30 == 0:
            with torch.no_grad():
                mine = slice(rank * len(xv) // world, (rank + 1) * len(xv) // world)
                out = net(xv[mine])
                s = torch.stack([F.cross_entropy(out, yv[mine], reduction="sum"),
                                 (out.argmax(1) == yv[mine]).float().sum(), torch.tensor(float(len(out))), clipped])
            dist.all_reduce(s)
            if rank == 0:
                print(f"step {step} val ce {s[0] / s[2]:.4f} acc {s[1] / s[2]:.3f} clipped {s[3] / world:.2f}", flush=True)
    if rank == 0:
        args.out.mkdir(parents=True, exist_ok=True)
        torch.save(net.state_dict(), args.out / "net.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
