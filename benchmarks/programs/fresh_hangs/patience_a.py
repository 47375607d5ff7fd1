"""Regression with Accelerate and a patience counter."""

import argparse
import time

import torch
import torch.nn as nn
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset


def make_data(count, seed, drift=0.0):
    gen = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 12, generator=gen)
    weight = torch.linspace(-1, 1, 12).unsqueeze(1)
    y = x @ weight + 0.1 * torch.randn(count, 1, generator=gen)
    # the second half of every block of 32 was recorded with the older probe, whose sign is turned
    old = (torch.arange(count) % 32 >= 16).unsqueeze(1)
    return TensorDataset(x, torch.where(old, (1 - 2 * drift) * y, y))


class Patience:
    def __init__(self, limit, min_delta=1e-4):
        self.limit, self.min_delta = limit, min_delta
        self.best, self.bad = float("inf"), 0

    def update(self, value):
        if value < self.best - self.min_delta:
            self.best, self.bad = value, 0
        else:
            self.bad += 1
        return self.bad >= self.limit


@torch.no_grad()
def validate(accelerator, model, loader):
    model.eval()
    total = torch.zeros((), device=accelerator.device)
    rows = 0
    for x, y in loader:
        total += ((model(x) - y) ** 2).sum()
        rows += x.shape[0]
    model.train()
    return total / rows


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--patience", type=int, default=2)
    parser.add_argument("--lr", type=float, default=0.01)
    args = parser.parse_args()

    set_seed(11)
    accelerator = Accelerator(cpu=True)
    train = DataLoader(make_data(256, 1), batch_size=16, shuffle=True)
    valid = DataLoader(make_data(128, 2, drift=1.0), batch_size=16)
    model = nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    model, optimizer, train, valid = accelerator.prepare(model, optimizer, train, valid)

    patience = Patience(args.patience)
    loss_fn = nn.MSELoss()
    for epoch in range(args.epochs):
        for x, y in train:
            time.sleep(0.12)
            loss = loss_fn(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        score = accelerator.reduce(validate(accelerator, model, valid), reduction="mean")
        accelerator.print(f"epoch {epoch} valid {score.item():.4f} best {patience.best:.4f}")
        if patience.update(score.item()):
            print(f"[{accelerator.process_index}] no progress for {args.patience} epochs", flush=True)
            break

    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        accelerator.save(accelerator.unwrap_model(model).state_dict(), "patience_model.pt")
    accelerator.end_training()


if __name__ == "__main__":
    main()
