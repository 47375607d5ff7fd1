"""Denoiser trained with a running average of the weights for sampling."""
import argparse
import copy
import logging
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

log = logging.getLogger("denoise")


class Denoiser(nn.Module):
    def __init__(self, dim=16, width=96):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(1, width), nn.SiLU())
        self.inp = nn.Linear(dim, width)
        self.mid = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        self.out = nn.Linear(width, dim)

    def forward(self, x, t):
        h = self.inp(x) + self.time(t)
        return self.out(h + self.mid(h))


class Averaged:
    def __init__(self, model, decay):
        self.shadow = copy.deepcopy(model).eval().requires_grad_(False)
        self.decay, self.updates = decay, 0

    @torch.no_grad()
    def update(self, model):
        self.updates += 1
        d = min(self.decay, (1 + self.updates) / (10 + self.updates))
        for s, p in zip(self.shadow.parameters(), model.parameters()):
            s.lerp_(p, 1 - d)


def curves(n, seed):
    g = torch.Generator().manual_seed(seed)
    t = torch.linspace(0, 6.28, 16)
    f = torch.rand(n, 1, generator=g) + 0.5
    return TensorDataset(torch.sin(f * t + 6.28 * torch.rand(n, 1, generator=g)))


def noise_loss(model, x0, g=None):
    t = torch.rand(len(x0), 1, generator=g)
    eps = torch.randn(x0.shape, generator=g)
    noisy = torch.cos(t * 1.57) * x0 + torch.sin(t * 1.57) * eps
    return F.mse_loss(model(noisy, t), eps)


@torch.no_grad()
def held_out_loss(net, data):
    return noise_loss(net, data.tensors[0], torch.Generator().manual_seed(0)).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=5)
    ap.add_argument("--ema-decay", type=float, default=0.99)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--out", default="out_victoria")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.ERROR, format="%(message)s")
    torch.manual_seed(70)
    model = DDP(Denoiser())
    ema = Averaged(model.module, args.ema_decay) if rank == 0 else None
    torch.manual_seed(7000 + rank)
    data, held = curves(1536, 1), curves(256, 2)
    sampler = DistributedSampler(data, seed=70, drop_last=True)
    loader = DataLoader(data, 32, sampler=sampler, drop_last=True)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, args.epochs * len(loader))
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for (x,) in loader:
            loss = noise_loss(model, x)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            sched.step()
            if ema is not None:
                ema.update(model.module)
        if ema is not None:
            log.info("epoch %d loss %.4f held out: raw %.4f averaged %.4f", epoch, loss.item(),
                     held_out_loss(model.module, held), held_out_loss(ema.shadow, held))
            os.makedirs(args.out, exist_ok=True)
            torch.save({"model": model.module.state_dict(), "ema": ema.shadow.state_dict(), "epoch": epoch},
                       os.path.join(args.out, "last.pt"))
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
