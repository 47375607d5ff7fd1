"""Self-distillation on unlabelled spectra: predict the features that a slower copy sees in the clean view."""
import argparse
import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Encoder(nn.Module):
    def __init__(self, bins=40, width=64, features=16):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(bins, width), nn.LayerNorm(width), nn.GELU())
        self.features = nn.Linear(width, features)
        self.rebuild = nn.Linear(features, bins)

    def forward(self, x):
        f = self.features(self.trunk(x))
        return f, self.rebuild(f)


def spectra(count, seed):
    gen = torch.Generator().manual_seed(seed)
    grid = torch.linspace(0, 1, 40)
    out = torch.zeros(count, 40)
    for _ in range(3):
        centre = torch.rand(count, 1, generator=gen)
        width = 0.02 + 0.05 * torch.rand(count, 1, generator=gen)
        out += torch.rand(count, 1, generator=gen) * torch.exp(-((grid - centre) / width) ** 2)
    return out


class Distiller:
    def __init__(self, args):
        self.args = args
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        data = TensorDataset(spectra(1600, args.seed))
        self.sampler = DistributedSampler(data, self.world, self.rank, seed=args.seed, drop_last=True)
        self.loader = DataLoader(data, args.batch, sampler=self.sampler, drop_last=True)
        torch.manual_seed(args.seed)
        self.student = DDP(Encoder())
        self.net = self.student.module
        self.slow = self.copy_weights()
        self.opt = torch.optim.AdamW(self.student.parameters(), lr=args.lr)
        self.gen = torch.Generator().manual_seed(args.seed * 77 + self.rank)
        self.level, self.low, self.refreshed = None, float("inf"), 0

    def copy_weights(self):
        return {k: p.detach().clone() for k, p in self.net.named_parameters()}

    def views(self, x):
        mask = (torch.rand(x.shape, generator=self.gen) > 0.3).float()
        return x, x * mask + 0.05 * torch.randn(x.shape, generator=self.gen)

    def track(self, loss):
        value = loss.item()
        self.level = value if self.level is None else 0.85 * self.level + 0.15 * value
        if self.level < 0.95 * self.low:
            self.low = self.level
            self.slow = self.copy_weights()
            self.refreshed += 1

    def step(self, x):
        clean, dirty = self.views(x)
        with torch.no_grad():
            wanted, _ = functional_call(self.net, self.slow, (clean,))
        got, rebuilt = self.student(dirty)
        loss = F.mse_loss(got, wanted) + F.mse_loss(rebuilt, clean)
        self.opt.zero_grad(set_to_none=True)
        loss.backward()
        self.opt.step()
        self.track(loss)
        return loss.detach()

    def run(self):
        for epoch in range(self.args.epochs):
            self.sampler.set_epoch(epoch)
            total = torch.zeros(())
            for (x,) in self.loader:
                total += self.step(x)
            dist.all_reduce(total)
            if self.rank == 0:
                mean = total.item() / (self.world * len(self.loader))
                print(f"epoch {epoch:2d} loss {mean:.5f} slow copy #{self.refreshed}", flush=True)
                torch.save({"encoder": self.net.state_dict(), "slow": self.slow, "epoch": epoch}, self.args.out)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=8)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--seed", type=int, default=37)
    ap.add_argument("--out", default=os.path.join(tempfile.gettempdir(), "dune.pt"))
    args = ap.parse_args()
    dist.init_process_group("gloo")
    Distiller(args).run()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
