"""Denoiser with a moving average of its weights."""
import datetime

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from ema import EMA


class Denoiser(nn.Module):
    def __init__(self, dim=16, width=64):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(dim + 1, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(),
                                 nn.Linear(width, dim))

    def forward(self, x, t):
        return self.net(torch.cat([x, t], dim=1))


def main():
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=120))
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(Denoiser())
    ema = EMA(model.module, switch_every=20)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(60 + rank)
    directions = torch.randn(3, 16, generator=torch.Generator().manual_seed(1))
    for step in range(50):
        clean = torch.randn(32, 3, generator=gen) @ directions
        noise = torch.randn(32, 16, generator=gen)
        t = torch.rand(32, 1, generator=gen)
        loss = nn.functional.mse_loss(model((1 - t) * clean + t * noise, t), noise - clean)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            ema.update(model.module)
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    if rank == 0:
        with torch.no_grad():
            sample = ema.average(torch.randn(4, 16), torch.ones(4, 1))
        print(f"sample norm {sample.norm().item():.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
