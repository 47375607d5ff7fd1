import argparse
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from torch.utils.data import DataLoader, TensorDataset


def get_args():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=8)
    ap.add_argument("--batch_size", type=int, default=16)
    ap.add_argument("--accumulation", type=int, default=2)
    ap.add_argument("--lr", type=float, default=3e-3)
    ap.add_argument("--patience", type=int, default=2)
    ap.add_argument("--seed", type=int, default=90)
    return ap.parse_args()


class Forecaster(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.rnn = nn.GRU(1, width, batch_first=True)
        self.drop = nn.Dropout(0.1)
        self.out = nn.Linear(width, 4)

    def forward(self, x):
        _, h = self.rnn(x[..., None])
        return self.out(self.drop(h[-1]))


def series(n, seed, length=28):
    g = torch.Generator().manual_seed(seed)
    t = torch.arange(length).float()
    f = 0.15 + 0.35 * torch.rand(n, 1, generator=g)
    p = 6.28 * torch.rand(n, 1, generator=g)
    s = torch.sin(f * t + p) + 0.1 * torch.randn(n, length, generator=g)
    return TensorDataset(s[:, :-4], s[:, -4:])


@torch.no_grad()
def score(model, dataset):
    model.eval()
    x, y = dataset.tensors
    value = sum(F.mse_loss(model(a), b, reduction="sum").item() for a, b in zip(x.split(64), y.split(64)))
    model.train()
    return value / y.numel()


class Patience:
    def __init__(self, limit):
        self.limit, self.best, self.bad = limit, float("inf"), 0

    def over(self, value):
        if value < self.best - 1e-4:
            self.best, self.bad = value, 0
        else:
            self.bad += 1
        return self.bad > self.limit


def main():
    args = get_args()
    accelerator = Accelerator(
        cpu=True,
        gradient_accumulation_steps=args.accumulation,
        dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True),
        step_scheduler_with_optimizer=False,
    )
    set_seed(args.seed)
    train, val = series(768, 1), series(160, 2)
    loader = DataLoader(train, batch_size=args.batch_size, shuffle=True)
    model = Forecaster()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    per_epoch = len(train) // (args.batch_size * accelerator.num_processes * args.accumulation)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs * per_epoch)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    set_seed(args.seed + 1, device_specific=True)
    patience = Patience(args.patience)
    for epoch in range(args.epochs):
        began = time.time()
        loader.set_epoch(epoch)
        total = torch.zeros(2)
        for x, y in loader:
            with accelerator.accumulate(model):
                loss = F.mse_loss(model(x), y)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                if accelerator.sync_gradients:
                    scheduler.step()
                optimizer.zero_grad()
            total += torch.tensor([loss.item(), 1.0])
        total = accelerator.reduce(total, reduction="sum")
        accelerator.wait_for_everyone()
        if accelerator.is_main_process:
            value = score(accelerator.unwrap_model(model), val)
            print(f"epoch {epoch} train {total[0] / total[1]:.4f} val {value:.4f} {time.time() - began:.1f}s", flush=True)
            if patience.over(value):
                accelerator.set_trigger()
        if accelerator.check_trigger():
            accelerator.print("no progress, stopping")
            break
    accelerator.wait_for_everyone()
    accelerator.end_training()


if __name__ == "__main__":
    main()
