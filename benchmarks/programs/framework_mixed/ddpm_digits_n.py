import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class UNetish(nn.Module):
    def __init__(self, T=100, c=24):
        super().__init__()
        self.time = nn.Embedding(T, c)
        self.a = nn.Conv2d(1, c, 3, padding=1)
        self.b = nn.Conv2d(c, c, 3, padding=1)
        self.o = nn.Conv2d(c, 1, 3, padding=1)

    def forward(self, x, t):
        h = F.silu(self.a(x) + self.time(t)[:, :, None, None])
        return self.o(h + F.silu(self.b(h)))


class Diffusion:
    def __init__(self, T=100, generator=None):
        self.T = T
        self.abar = torch.cumprod(1 - torch.linspace(1e-3, 0.06, T), 0)
        self.generator = generator

    def sample_timesteps(self, n):
        return torch.randint(0, self.T, (n,), generator=self.generator)

    def noised(self, x, t):
        eps = torch.randn(x.shape, generator=self.generator)
        a = self.abar[t].view(-1, 1, 1, 1)
        return a.sqrt() * x + (1 - a).sqrt() * eps, eps


def digits():
    x = torch.tensor(load_digits().images, dtype=torch.float32)[:640]
    return TensorDataset((x / 8 - 1).unsqueeze(1))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--seed", type=int, default=21)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(args.seed)
    model = DDP(UNetish())
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    rng = torch.Generator().manual_seed(args.seed + 1000 * rank)
    diffusion = Diffusion(generator=rng)
    ds = digits()
    sampler = DistributedSampler(ds, seed=args.seed)
    loader = DataLoader(ds, 16, sampler=sampler, drop_last=True)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        total = 0.0
        for (x,) in loader:
            t = diffusion.sample_timesteps(len(x))
            xt, eps = diffusion.noised(x, t)
            loss = F.mse_loss(model(xt, t), eps)
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += loss.item()
        if rank == 0:
            print(f"epoch {epoch} loss {total / len(loader):.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
