"""Regression of sensor readings with broken readings in between (accelerate)."""
import argparse

import torch
from accelerate import Accelerator
from accelerate.logging import get_logger
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import logging

from guard import Guard

logger = get_logger(__name__)


class Attn(nn.Module):
    def __init__(self, sensors=10, dim=32):
        super().__init__()
        self.val = nn.Linear(1, dim)
        self.name = nn.Parameter(0.1 * torch.randn(sensors, dim))
        self.att = nn.MultiheadAttention(dim, 2, batch_first=True)
        self.out = nn.Linear(dim, 1)

    def forward(self, x):
        h = self.val(x.unsqueeze(-1)) + self.name
        h = h + self.att(h, h, h, need_weights=False)[0]
        return self.out(h.mean(1)).squeeze(1)


def readings(n, broken, seed=5):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 10, generator=g)
    y = x[:, :3].sum(1) + 0.1 * torch.randn(n, generator=g)
    rows = torch.randperm(n, generator=g)[:broken]
    x[rows, rows % 10] = float("nan")
    return TensorDataset(x, y)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--rows", type=int, default=2048)
    ap.add_argument("--broken", type=int, default=9)
    ap.add_argument("--batch", type=int, default=32)
    args = ap.parse_args()
    logging.basicConfig(level=logging.INFO)
    set_seed(42)
    acc = Accelerator(cpu=True)
    model = Attn()
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loader = DataLoader(readings(args.rows, args.broken), args.batch, shuffle=True)
    model, opt, loader = acc.prepare(model, opt, loader)
    guard = Guard(acc)
    for epoch in range(args.epochs):
        done = 0
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x), y)
            done += guard.step(model, opt, loss)
        mean = acc.gather(loss.detach().nan_to_num().reshape(1)).mean().item()
        logger.info(f"epoch {epoch}: {done} steps, {guard.left_out} left out so far, loss {mean:.4f}", main_process_only=True)
    acc.wait_for_everyone()
    acc.end_training()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
