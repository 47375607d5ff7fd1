"""accelerate script: linear decay with warm-up over a fixed number of updates."""
import argparse
import logging

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Dataset

logging.basicConfig(level=logging.INFO, format="%(message)s")
log = logging.getLogger("train")


class Spirals(Dataset):
    def __init__(self, n=1536, seed=2):
        g = torch.Generator().manual_seed(seed)
        t = torch.rand(n, generator=g) * 3 + 0.3
        self.y = torch.randint(0, 2, (n,), generator=g)
        sign = (self.y * 2 - 1).float()
        self.x = torch.stack([sign * t * torch.cos(2 * t), sign * t * torch.sin(2 * t)], 1)
        self.x += 0.05 * torch.randn(n, 2, generator=g)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


def linear_schedule(opt, warmup, total):
    def factor(step):
        if step < warmup:
            return (step + 1) / warmup
        return max(0.0, (total - step) / max(1, total - warmup))

    return LambdaLR(opt, factor)


def accuracy(accelerator, model, loader):
    model.eval()
    hits = []
    with torch.no_grad():
        for x, y in loader:
            hits.append(accelerator.gather_for_metrics((model(x).argmax(1) == y).float()))
    model.train()
    return torch.cat(hits).mean().item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--lr", type=float, default=1e-2)
    ap.add_argument("--warmup", type=int, default=8)
    args = ap.parse_args()
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)

    model = nn.Sequential(nn.Linear(2, 48), nn.GELU(), nn.Linear(48, 48), nn.GELU(), nn.Linear(48, 2))
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    train = DataLoader(Spirals(), batch_size=args.batch, shuffle=True)
    held = DataLoader(Spirals(n=300, seed=3), batch_size=64)
    model, opt, train, held = accelerator.prepare(model, opt, train, held)

    total = args.epochs * len(train)  # updates of this run
    sched = linear_schedule(opt, args.warmup, total)

    step = 0
    for epoch in range(args.epochs):
        for x, y in train:
            with accelerator.accumulate(model):
                loss = F.cross_entropy(model(x), y)
                accelerator.backward(loss)
                opt.step()
                sched.step()
                opt.zero_grad()
            step += 1
        acc = accuracy(accelerator, model, held)
        if accelerator.is_main_process:
            log.info("epoch %d step %d/%d loss %.4f acc %.3f", epoch, step, total, loss.item(), acc)
    accelerator.end_training()


if __name__ == "__main__":
    main()
