import argparse

import torch
import torch.nn as nn
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset


class Mixer(nn.Module):
    def __init__(self, dim=512, depth=5, classes=20):
        super().__init__()
        self.stem = nn.Linear(48, dim)
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, dim), nn.GELU()) for _ in range(depth))
        self.head = nn.Linear(dim, classes)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


def get_data(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 48, generator=g)
    w = torch.randn(48, 20, generator=torch.Generator().manual_seed(0))
    return TensorDataset(x, (x @ w).argmax(-1))


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--accum", type=int, default=8)
    parser.add_argument("--micro-batch", type=int, default=4)
    parser.add_argument("--updates", type=int, default=64)
    parser.add_argument("--lr", type=float, default=1e-3)
    return parser.parse_args()


def main():
    args = parse()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=args.accum)
    set_seed(42)
    data = get_data(args.updates * args.accum * args.micro_batch * accelerator.num_processes, seed=9)
    loader = DataLoader(data, batch_size=args.micro_batch, shuffle=True)
    model = Mixer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.updates)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    model.train()
    running = 0.0
    updates = 0
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        running += loss.detach()
        if accelerator.sync_gradients:
            scheduler.step()
            updates += 1
            if updates % 16 == 0:
                mean = accelerator.reduce(running / (16 * args.accum), reduction="mean")
                accelerator.print(f"update {updates} loss {mean.item():.4f}", flush=True)
                running = 0.0
    accelerator.end_training()


if __name__ == "__main__":
    main()
