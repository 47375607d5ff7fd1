"""Contrastive pre-training of a small point-cloud encoder; rank 0 keeps the curves."""
import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy, normalize
from torch.nn.parallel import DistributedDataParallel as DDP

from curves import Curves


class PointEncoder(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.point = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 48), nn.ReLU())
        self.cloud = nn.Linear(48, dim)

    def forward(self, a, b):
        both = torch.cat([a, b])
        return normalize(self.cloud(self.point(both).amax(1)), dim=-1).chunk(2)


def clouds(n, points, gen):
    """Ellipsoids; the two views of one of them are two samples of its surface."""
    axes = 0.3 + torch.rand(n, 1, 3, generator=gen)
    def view():
        d = normalize(torch.randn(n, points, 3, generator=gen), dim=-1)
        return d * axes + 0.01 * torch.randn(n, points, 3, generator=gen)
    return view(), view()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=500)
    ap.add_argument("--batch", type=int, default=16)
    ap.add_argument("--points", type=int, default=32)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--temperature", type=float, default=0.1)
    ap.add_argument("--seed", type=int, default=30)
    ap.add_argument("--curves", default="/tmp/point_curves.json")
    ap.add_argument("--out", default="/tmp/point_encoder.pt")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(args.seed)
    model = DDP(PointEncoder())
    optim = torch.optim.AdamW(model.parameters(), lr=args.lr)
    gen = torch.Generator().manual_seed(args.seed * 977 + rank)
    curves = Curves(args.curves) if rank == 0 else None
    begin = time.perf_counter()
    for step in range(args.steps):
        a, b = clouds(args.batch, args.points, gen)
        za, zb = model(a, b)
        logits = za @ zb.T / args.temperature
        labels = torch.arange(len(a))
        loss = 0.5 * (cross_entropy(logits, labels) + cross_entropy(logits.T, labels))
        optim.zero_grad(set_to_none=True)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optim.step()
        top1 = (logits.argmax(1) == labels).float().mean()
        seen = torch.stack([loss.detach(), top1])
        dist.all_reduce(seen)
        seen /= dist.get_world_size()
        if curves is not None:
            curves.add(loss=seen[0], top1=seen[1], norm=norm, logit=logits.detach().abs().mean())
            if step % 50 == 0:
                print(f"step {step} loss {seen[0]:.4f} top1 {seen[1]:.3f} t {time.perf_counter() - begin:.1f}", flush=True)
    if rank == 0:
        torch.save(model.module.state_dict(), args.out)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
