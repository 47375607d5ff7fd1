"""A small denoising diffusion model on glyph images; time steps and noise are drawn per rank."""
import argparse
import math
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def glyphs(n, seed, size=8):
    g = torch.Generator().manual_seed(seed)
    img = torch.full((n, 1, size, size), -1.0)
    kind = torch.randint(0, 3, (n,), generator=g)
    at = torch.randint(1, size - 1, (n,), generator=g)
    for i in range(n):
        k, a = int(kind[i]), int(at[i])
        if k == 0:
            img[i, 0, a, :] = 1
        elif k == 1:
            img[i, 0, :, a] = 1
        else:
            img[i, 0].fill_diagonal_(1.0)
    return TensorDataset(img)


class Schedule:
    def __init__(self, steps=50):
        self.steps = steps
        t = torch.arange(steps + 1) / steps
        alpha_bar = torch.cos((t + 0.008) / 1.008 * math.pi / 2) ** 2
        alpha_bar = alpha_bar / alpha_bar[0]
        self.beta = (1 - alpha_bar[1:] / alpha_bar[:-1]).clamp(max=0.999)
        self.alpha = 1 - self.beta
        self.bar = self.alpha.cumprod(0)

    def corrupt(self, x, t, eps):
        b = self.bar[t].view(-1, 1, 1, 1)
        return b.sqrt() * x + (1 - b).sqrt() * eps


class Denoiser(nn.Module):
    def __init__(self, ch=24, steps=50):
        super().__init__()
        self.time = nn.Sequential(nn.Embedding(steps, ch), nn.Linear(ch, ch), nn.SiLU())
        self.inp = nn.Conv2d(1, ch, 3, padding=1)
        self.down = nn.Conv2d(ch, 2 * ch, 3, stride=2, padding=1)
        self.mid = nn.Conv2d(2 * ch, 2 * ch, 3, padding=1)
        self.up = nn.ConvTranspose2d(2 * ch, ch, 2, stride=2)
        self.n1, self.n2, self.n3 = nn.GroupNorm(4, ch), nn.GroupNorm(4, 2 * ch), nn.GroupNorm(4, 2 * ch)
        self.shift = nn.Linear(ch, 2 * ch)
        self.out = nn.Sequential(nn.Conv2d(2 * ch, ch, 3, padding=1), nn.SiLU(), nn.Conv2d(ch, 1, 3, padding=1))

    def forward(self, x, t):
        emb = self.time(t)
        h = F.silu(self.n1(self.inp(x) + emb[:, :, None, None]))
        d = F.silu(self.n2(self.down(h) + self.shift(emb)[:, :, None, None]))
        d = d + F.silu(self.n3(self.mid(d)))
        return self.out(torch.cat([h, self.up(d)], 1))


@torch.no_grad()
def sample(net, sch, n, gen):
    net.eval()
    x = torch.randn(n, 1, 8, 8, generator=gen)
    for t in reversed(range(sch.steps)):
        eps = net(x, torch.full((n,), t))
        mean = (x - sch.beta[t] / (1 - sch.bar[t]).sqrt() * eps) / sch.alpha[t].sqrt()
        x = mean + (sch.beta[t].sqrt() * torch.randn(x.shape, generator=gen) if t > 0 else 0)
    net.train()
    return x.clamp(-1, 1)


@torch.no_grad()
def held_loss(net, sch, data, rank, world):
    net.eval()
    gen = torch.Generator().manual_seed(1234)
    x = data.tensors[0]
    t = torch.randint(0, sch.steps, (len(x),), generator=gen)
    eps = torch.randn(x.shape, generator=gen)
    mine = slice(rank, None, world)
    err = (net(sch.corrupt(x[mine], t[mine], eps[mine]), t[mine]) - eps[mine]).pow(2)
    s = torch.tensor([err.sum(), float(err.numel())])
    dist.all_reduce(s)
    net.train()
    return (s[0] / s[1]).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=5)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--accumulate", type=int, default=2)
    ap.add_argument("--lr", type=float, default=3e-3)
    ap.add_argument("--seed", type=int, default=9)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)
    sch = Schedule()
    model = DDP(Denoiser(steps=sch.steps))
    gen = torch.Generator().manual_seed(args.seed * 1000 + rank)
    train, held = glyphs(1280, 1), glyphs(200, 2)
    sampler = DistributedSampler(train, seed=args.seed)
    loader = DataLoader(train, batch_size=args.batch, sampler=sampler)
    groups = len(loader) // args.accumulate
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, args.lr, total_steps=groups * args.epochs)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        tally = torch.zeros(2)
        for i, (x,) in enumerate(loader):
            t = torch.randint(0, sch.steps, (len(x),), generator=gen)
            eps = torch.randn(x.shape, generator=gen)
            last = (i + 1) % args.accumulate == 0
            model.require_backward_grad_sync = last
            loss = F.mse_loss(model(sch.corrupt(x, t, eps), t), eps)
            (loss / args.accumulate).backward()
            tally += torch.tensor([loss.item(), 1.0])
            if last:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                opt.step()
                sched.step()
                opt.zero_grad(set_to_none=True)
        dist.all_reduce(tally)
        held_mse = held_loss(model.module, sch, held, rank, world)
        if rank == 0:
            print(f"epoch {epoch} train {(tally[0] / tally[1]).item():.4f} held {held_mse:.4f}", flush=True)

    pics = sample(model.module, sch, 8, gen)
    gathered = [torch.empty_like(pics) for _ in range(world)] if rank == 0 else None
    dist.gather(pics, gathered, dst=0)
    if rank == 0:
        os.makedirs("runs/turmeric", exist_ok=True)
        torch.save({"model": model.module.state_dict(), "samples": torch.cat(gathered)}, "runs/turmeric/final.pt")
        print("bright pixels per sample", (torch.cat(gathered) > 0).float().sum((1, 2, 3)).tolist(), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
