"""Denoising diffusion on 2-d points with accelerate."""
import argparse
import math

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Spirals(Dataset):
    def __init__(self, n=1024, seed=0):
        g = torch.Generator().manual_seed(seed)
        t = torch.rand(n, generator=g) * 3 * math.pi + 1
        s = torch.randint(0, 2, (n,), generator=g) * 2.0 - 1
        self.x = torch.stack([s * t.cos() * t, s * t.sin() * t], 1) / 8

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i]


class Denoiser(nn.Module):
    def __init__(self, h=64):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(16, h), nn.SiLU())
        self.inp = nn.Linear(2, h)
        self.mid = nn.Sequential(nn.SiLU(), nn.Linear(h, h), nn.SiLU(), nn.Linear(h, h), nn.SiLU())
        self.out = nn.Linear(h, 2)

    def forward(self, x, t):
        freq = torch.exp(torch.linspace(0, 4, 8))
        emb = torch.cat([(t[:, None] * freq).sin(), (t[:, None] * freq).cos()], 1)
        return self.out(self.mid(self.inp(x) + self.time(emb)))


class Schedule:
    def __init__(self, steps=100):
        beta = torch.linspace(1e-4, 0.05, steps)
        self.abar = torch.cumprod(1 - beta, 0)
        self.steps = steps

    def add_noise(self, x, noise, t):
        a = self.abar[t][:, None]
        return a.sqrt() * x + (1 - a).sqrt() * noise


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--batch-size", type=int, default=64)
    ap.add_argument("--seed", type=int, default=42)
    args = ap.parse_args()
    accelerator = Accelerator(cpu=True)
    model = Denoiser()
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    loader = DataLoader(Spirals(), batch_size=args.batch_size, shuffle=True, drop_last=True)
    set_seed(args.seed, device_specific=True)
    model, opt, loader = accelerator.prepare(model, opt, loader)
    sched = Schedule()
    step = 0
    for epoch in range(args.epochs):
        running = 0.0
        for clean in loader:
            noise = torch.randn_like(clean)
            t = torch.randint(0, sched.steps, (len(clean),))
            pred = model(sched.add_noise(clean, noise, t), t / sched.steps)
            loss = F.mse_loss(pred, noise)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            opt.zero_grad()
            running += loss.detach()
            step += 1
        mean = accelerator.reduce(running / len(loader), "mean")
        accelerator.print(f"epoch {epoch} steps {step} loss {mean.item():.4f}")
    accelerator.wait_for_everyone()
    accelerator.end_training()


if __name__ == "__main__":
    main()
