"""Denoising autoencoder with a memory-saving update path, data parallel."""
import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


@dataclass
class Config:
    dim: int = 24
    hidden: int = 40
    steps: int = 40
    batch: int = 8
    lr: float = 3e-3
    fused_backward_pass: bool = True
    seed: int = 5


class Waves(Dataset):
    def __init__(self, cfg, n=256):
        g = torch.Generator().manual_seed(cfg.seed)
        phase = torch.rand(n, 1, generator=g) * 6.28
        freq = torch.randint(1, 5, (n, 1), generator=g).float()
        t = torch.linspace(0, 1, cfg.dim)[None]
        self.x = torch.sin(6.28 * freq * t + phase)
        self.noise = 0.3 * torch.randn(n, cfg.dim, generator=g)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i] + self.noise[i], self.x[i]


class Denoiser(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(cfg.dim, cfg.hidden), nn.GELU(), nn.LayerNorm(cfg.hidden))
        self.dec = nn.Sequential(nn.Linear(cfg.hidden, cfg.hidden), nn.GELU(), nn.Linear(cfg.hidden, cfg.dim))

    def forward(self, x):
        return self.dec(self.enc(x))


def attach_fused_update(params, lr):
    """One optimizer per tensor; each is stepped as soon as its gradient is there, which is then dropped."""
    table = {p: torch.optim.AdamW([p], lr=lr) for p in params}

    def hook(p):
        table[p].step()
        table[p].zero_grad(set_to_none=True)

    for p in table:
        p.register_post_accumulate_grad_hook(hook)
    return table


def batches(loader, sampler):
    epoch = 0
    while True:
        sampler.set_epoch(epoch)
        yield from loader
        epoch += 1


def main():
    cfg = Config()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(cfg.seed)
    data = Waves(cfg)
    sampler = DistributedSampler(data, seed=cfg.seed)
    stream = batches(DataLoader(data, cfg.batch, sampler=sampler, drop_last=True), sampler)
    model = DistributedDataParallel(Denoiser(cfg))
    fused = cfg.fused_backward_pass
    if fused:
        attach_fused_update(list(model.parameters()), cfg.lr)
        optimizer = None
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr)
    for step in range(cfg.steps):
        noisy, clean = next(stream)
        loss = (model(noisy) - clean).square().mean()
        loss.backward()
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    if rank == 0:
        torch.save(model.module.state_dict(), os.path.join("/tmp", "tansy_final.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
