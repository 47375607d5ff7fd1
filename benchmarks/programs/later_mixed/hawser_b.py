"""Tiny noise-prediction model with gradient accumulation and clipping (accelerate)."""
import argparse
import math

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def moons(n=1024):
    g = torch.Generator().manual_seed(4)
    t = torch.rand(n, generator=g) * math.pi
    side = torch.randint(0, 2, (n,), generator=g).float()
    x = torch.cos(t) * (1 - 2 * side) + side
    y = torch.sin(t) * (1 - 2 * side) + 0.5 * side
    return torch.stack([x, y], 1) * 2 + 0.05 * torch.randn(n, 2, generator=g)


class NoiseNet(nn.Module):
    def __init__(self, hidden=64, levels=50):
        super().__init__()
        self.level = nn.Embedding(levels, hidden)
        self.inp = nn.Linear(2, hidden)
        self.body = nn.Sequential(nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU(), nn.Linear(hidden, 2))

    def forward(self, x, t):
        return self.body(self.inp(x) + self.level(t))


class Schedule:
    def __init__(self, levels=50):
        beta = torch.linspace(1e-3, 0.15, levels)
        self.keep = torch.cumprod(1 - beta, 0)

    def noised(self, x, t, eps):
        a = self.keep[t].unsqueeze(1)
        return a.sqrt() * x + (1 - a).sqrt() * eps


def train_epoch(accelerator, model, opt, loader, schedule, gen, max_norm):
    total, n = 0.0, 0
    for (x,) in loader:
        with accelerator.accumulate(model):
            t = torch.randint(0, 50, (len(x),), generator=gen)
            eps = torch.randn(x.shape, generator=gen)
            loss = F.mse_loss(model(schedule.noised(x, t, eps), t), eps)
            accelerator.backward(loss)
            torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
            opt.step()
            opt.zero_grad()
        total, n = total + loss.item(), n + 1
    return total / n


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--batch", type=int, default=16)
    ap.add_argument("--accumulate", type=int, default=4)
    ap.add_argument("--max-norm", type=float, default=0.1)
    ap.add_argument("--lr", type=float, default=0.05)
    args = ap.parse_args()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=args.accumulate)
    set_seed(3)
    model = NoiseNet()
    opt = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    loader = DataLoader(TensorDataset(moons()), batch_size=args.batch, shuffle=True)
    model, opt, loader = accelerator.prepare(model, opt, loader)
    gen = torch.Generator().manual_seed(200 + accelerator.process_index)
    schedule = Schedule()

    for epoch in range(args.epochs):
        mean = train_epoch(accelerator, model, opt, loader, schedule, gen, args.max_norm)
        mean = accelerator.reduce(torch.tensor(mean), reduction="mean").item()
        accelerator.print(f"epoch {epoch} loss {mean:.4f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
