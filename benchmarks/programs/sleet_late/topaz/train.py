import argparse
import contextlib

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from monitor import Recorder


class Mixer(nn.Module):
    def __init__(self, tokens=24, dim=48, depth=3, classes=8):
        super().__init__()
        self.inp = nn.Linear(12, dim)
        self.rows = nn.ModuleList(nn.Sequential(nn.Linear(tokens, 48), nn.GELU(), nn.Linear(48, tokens)) for _ in range(depth))
        self.cols = nn.ModuleList(nn.Sequential(nn.Linear(dim, 96), nn.GELU(), nn.Linear(96, dim)) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(2 * depth))
        self.out = nn.Linear(dim, classes)

    def forward(self, x):
        x = self.inp(x)
        for i, (r, c) in enumerate(zip(self.rows, self.cols)):
            x = x + r(self.norms[2 * i](x).transpose(1, 2)).transpose(1, 2)
            x = x + c(self.norms[2 * i + 1](x))
        return self.out(x.mean(1))


def dataset(n=1024):
    g = torch.Generator().manual_seed(55)
    y = torch.randint(0, 8, (n,), generator=g)
    centre = torch.randn(8, 24, 12, generator=g)
    return TensorDataset(centre[y] * 0.4 + torch.randn(n, 24, 12, generator=g), y)


@contextlib.contextmanager
def process_group():
    dist.init_process_group("gloo")
    yield dist.get_rank()
    dist.barrier()
    dist.destroy_process_group()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--logdir", default="logs")
    args = ap.parse_args()
    with process_group() as rank:
        torch.manual_seed(13)
        ds = dataset()
        sampler = DistributedSampler(ds, seed=13)
        loader = DataLoader(ds, args.batch, sampler=sampler, drop_last=True)
        model = DistributedDataParallel(Mixer())
        opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
        rec = Recorder(args.logdir) if rank == 0 else None
        step = 0
        for epoch in range(args.epochs):
            sampler.set_epoch(epoch)
            for x, y in loader:
                logits = model(x)
                loss = F.cross_entropy(logits, y)
                opt.zero_grad()
                loss.backward()
                opt.step()
                step += 1
                if rec:
                    acc = (logits.argmax(1) == y).float().mean().item()
                    rec.write(step, model.module, {"epoch": epoch, "loss": loss.item(), "acc": acc})
            if rec:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)
        if rec:
            rec.close()


if __name__ == "__main__":
    main()
