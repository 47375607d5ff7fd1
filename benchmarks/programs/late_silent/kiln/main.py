"""DiLoCo (Douillard et al. 2023): local AdamW rounds, an outer Nesterov step on the mean change."""
import argparse
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


class Poly(nn.Module):
    """Next-token model for arithmetic progressions modulo a prime."""

    def __init__(self, mod, ctx, d=40):
        super().__init__()
        self.emb = nn.Embedding(mod, d)
        self.net = nn.Sequential(nn.Linear(ctx * d, 128), nn.GELU(), nn.Dropout(0.05), nn.Linear(128, mod))

    def forward(self, x):
        return self.net(self.emb(x).flatten(1))


def progressions(n, mod, ctx, gen):
    start = torch.randint(0, mod, (n, 1), generator=gen)
    jump = torch.randint(1, mod, (n, 1), generator=gen)
    seq = (start + jump * torch.arange(ctx + 1)) % mod
    return seq[:, :-1], seq[:, -1]


class Outer:
    def __init__(self, model, lr, momentum):
        self.model = model
        self.anchor = [p.detach().clone() for p in model.parameters()]
        self.opt = torch.optim.SGD(self.anchor, lr=lr, momentum=momentum, nesterov=True)

    @torch.no_grad()
    def step(self, world):
        spread = 0.0
        for a, p in zip(self.anchor, self.model.parameters()):
            delta = a - p
            dist.all_reduce(delta)
            a.grad = delta / world
            spread += (a - p - a.grad).pow(2).sum().item()
        self.opt.step()
        for a, p in zip(self.anchor, self.model.parameters()):
            p.copy_(a)
        return spread ** 0.5


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--rounds", type=int, default=12)
    ap.add_argument("--inner", type=int, default=15)
    ap.add_argument("--batch", type=int, default=48)
    ap.add_argument("--mod", type=int, default=13)
    ap.add_argument("--seed", type=int, default=26)
    ap.add_argument("--out", type=Path, default=Path(__file__).resolve().parent / "out")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)
    model = Poly(args.mod, 3)
    torch.manual_seed(args.seed + 1 + rank)
    inner = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    outer = Outer(model, lr=0.7, momentum=0.5)
    gen = torch.Generator().manual_seed(args.seed * 10 + rank)
    held = progressions(256, args.mod, 3, torch.Generator().manual_seed(999))

    for number in range(1, args.rounds + 1):
        model.train()
        total = 0.0
        for _ in range(args.inner):
            x, y = progressions(args.batch, args.mod, 3, gen)
            loss = F.cross_entropy(model(x), y)
            inner.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            inner.step()
            total += loss.item()
        spread = outer.step(world)
        t = torch.tensor(total / args.inner)
        dist.all_reduce(t)
        if rank == 0 and number % 3 == 0:
            model.eval()
            with torch.no_grad():
                acc = (model(held[0]).argmax(1) == held[1]).float().mean()
            print(f"round {number} loss {t / world:.4f} held-out {acc:.3f} spread {spread:.3f}", flush=True)
    if rank == 0:
        args.out.mkdir(parents=True, exist_ok=True)
        torch.save(model.state_dict(), args.out / "model.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
