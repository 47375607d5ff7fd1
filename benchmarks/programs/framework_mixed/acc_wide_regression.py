import argparse
import time

import torch
import torch.nn as nn
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset


def build(width):
    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--width", type=int, default=1536)
    ap.add_argument("--micro-batch", type=int, default=4)
    ap.add_argument("--accumulate", type=int, default=8)
    ap.add_argument("--updates", type=int, default=20)
    args = ap.parse_args()
    accelerator = Accelerator(cpu=True)
    set_seed(1)
    g = torch.Generator().manual_seed(0)
    n = args.micro_batch * args.accumulate * args.updates * accelerator.num_processes
    x = torch.randn(n, 64, generator=g)
    loader = DataLoader(TensorDataset(x, x[:, :8].sum(1, keepdim=True)), args.micro_batch, shuffle=True)
    model = build(args.width)
    opt = torch.optim.SGD(model.parameters(), lr=1e-3)
    model, opt, loader = accelerator.prepare(model, opt, loader)
    start, running = time.perf_counter(), 0.0
    for i, (xb, yb) in enumerate(loader):
        boundary = (i + 1) % args.accumulate == 0
        loss = nn.functional.mse_loss(model(xb), yb) / args.accumulate
        accelerator.backward(loss)
        running += loss.detach()
        if boundary:
            opt.step()
            opt.zero_grad()
            update = (i + 1) // args.accumulate
            if update % 5 == 0:
                took = (time.perf_counter() - start) / update
                accelerator.print(f"update {update} loss {running / update:.4f} {took:.3f} s/update")
    accelerator.end_training()


if __name__ == "__main__":
    main()
