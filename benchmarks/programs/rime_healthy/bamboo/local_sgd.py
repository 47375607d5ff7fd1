"""accelerate + LocalSGD on a small autoencoder."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.local_sgd import LocalSGD
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset


def frames(n, seed, size=16):
    g = torch.Generator().manual_seed(seed)
    basis = torch.randn(12, size * size, generator=torch.Generator().manual_seed(0))
    z = torch.randn(n, 12, generator=g)
    return TensorDataset(torch.tanh(z @ basis / 3.0))


class AutoEncoder(nn.Module):
    def __init__(self, d=256, h=160, z=12):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(d, h), nn.GELU(), nn.Linear(h, z))
        self.dec = nn.Sequential(nn.Linear(z, h), nn.GELU(), nn.Linear(h, d), nn.Tanh())

    def forward(self, x):
        return self.dec(self.enc(x))


def evaluate(acc, model, loader):
    model.eval()
    rows = []
    with torch.no_grad():
        for (x,) in loader:
            rows.append(acc.gather_for_metrics((model(x) - x).pow(2).mean(1)))
    model.train()
    return torch.cat(rows).mean().item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=6)
    ap.add_argument("--local-steps", type=int, default=8)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--lr", type=float, default=0.5)
    args = ap.parse_args()
    acc = Accelerator(cpu=True)
    set_seed(3)
    model = AutoEncoder()
    opt = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.0)
    train = DataLoader(frames(4096, 1), args.batch, shuffle=True, drop_last=True)
    val = DataLoader(frames(512, 2), 64)
    sched = torch.optim.lr_scheduler.ExponentialLR(opt, 0.9)
    model, opt, train, val = acc.prepare(model, opt, train, val)
    for epoch in range(args.epochs):
        with LocalSGD(accelerator=acc, model=model, local_sgd_steps=args.local_steps, enabled=True) as local:
            for (x,) in train:
                loss = F.mse_loss(model(x), x) * 10
                acc.backward(loss)
                opt.step()
                opt.zero_grad()
                local.step()
        sched.step()
        err = evaluate(acc, model, val)
        acc.print(f"epoch {epoch} loss {loss.item():.4f} val {err:.4f}")
    acc.wait_for_everyone()
    acc.save(acc.unwrap_model(model).state_dict(), "ae.pt")
    acc.end_training()


if __name__ == "__main__":
    main()
