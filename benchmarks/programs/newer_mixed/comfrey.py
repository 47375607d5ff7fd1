"""Sentence scorer trained through accelerate with a cosine schedule."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, Dataset


class Pairs(Dataset):
    def __init__(self, n=320, seed=12):
        g = torch.Generator().manual_seed(seed)
        self.a = torch.randint(0, 50, (n, 6), generator=g)
        self.b = torch.where(torch.rand(n, 6, generator=g) < 0.5, self.a, torch.randint(0, 50, (n, 6), generator=g))

    def __len__(self):
        return len(self.a)

    def __getitem__(self, i):
        return {"a": self.a[i], "b": self.b[i], "score": (self.a[i] == self.b[i]).float().mean()}


class Scorer(nn.Module):
    def __init__(self, dim=24):
        super().__init__()
        self.embed = nn.Embedding(50, dim)
        self.mix = nn.Sequential(nn.Linear(2 * dim, dim), nn.Tanh(), nn.Linear(dim, 1))

    def forward(self, a, b):
        ea, eb = self.embed(a).mean(1), self.embed(b).mean(1)
        return self.mix(torch.cat([ea * eb, (ea - eb).abs()], 1)).squeeze(1)


def cosine_with_warmup(opt, warm, total):
    def factor(step):
        if step < warm:
            return (step + 1) / warm
        done = (step - warm) / max(1, total - warm)
        return 0.5 * (1 + torch.cos(torch.tensor(min(done, 1.0) * 3.14159265))).item()
    return torch.optim.lr_scheduler.LambdaLR(opt, factor)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--batch", type=int, default=8)
    p.add_argument("--warm", type=int, default=4)
    args = p.parse_args()
    acc = Accelerator(cpu=True)
    set_seed(3)
    loader = DataLoader(Pairs(), batch_size=args.batch, shuffle=True)
    model = Scorer()
    opt = torch.optim.AdamW(model.parameters(), lr=4e-3)
    model, opt, loader = acc.prepare(model, opt, loader)
    updates = args.epochs * len(loader)
    sched = cosine_with_warmup(opt.optimizer, args.warm * acc.num_processes, updates * acc.num_processes)
    sched = acc.prepare(sched)
    for epoch in range(args.epochs):
        for batch in loader:
            loss = F.mse_loss(model(batch["a"], batch["b"]), batch["score"])
            acc.backward(loss)
            acc.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            sched.step()
            opt.zero_grad()
        acc.print(f"epoch {epoch} loss {loss.item():.4f} lr {sched.get_last_lr()[0]:.6f}")
    acc.wait_for_everyone()
    acc.end_training()


if __name__ == "__main__":
    main()
