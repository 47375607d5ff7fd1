"""SimCLR pre-training with negatives from all ranks."""
import argparse
import logging
import math
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

log = logging.getLogger("simclr")


@dataclass
class Config:
    epochs: int = 3
    batch_size: int = 16
    lr: float = 0.1
    warmup_epochs: int = 1
    temperature: float = 0.2
    proj_dim: int = 16
    seed: int = 42


class TwoViews(Dataset):
    def __init__(self, n=192, size=14, seed=0):
        g = torch.Generator().manual_seed(seed)
        base = torch.randn(24, 1, size, size, generator=g)
        self.labels = torch.randint(0, 24, (n,), generator=g)
        self.images = base[self.labels] + 0.4 * torch.randn(n, 1, size, size, generator=g)

    def __len__(self):
        return len(self.images)

    @staticmethod
    def augment(img):
        dy, dx = torch.randint(-2, 3, (2,)).tolist()
        img = torch.roll(img, (dy, dx), (1, 2))
        if torch.rand(()) < 0.5:
            img = img.flip(2)
        return img + 0.1 * torch.randn_like(img)

    def __getitem__(self, i):
        return self.augment(self.images[i]), self.augment(self.images[i])


class GatherLayer(torch.autograd.Function):
    """Gather tensors from all processes, keeping the graph."""

    @staticmethod
    def forward(ctx, x):
        out = [torch.zeros_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(out, x)
        return tuple(out)

    @staticmethod
    def backward(ctx, *grads):
        return grads[dist.get_rank()].contiguous()


class NTXent(nn.Module):
    """Loss over the global batch of 2N views; every rank evaluates the same matrix."""

    def __init__(self, temperature):
        super().__init__()
        self.temperature = temperature

    def forward(self, z1, z2):
        z1 = torch.cat(GatherLayer.apply(F.normalize(z1, dim=1).contiguous()))
        z2 = torch.cat(GatherLayer.apply(F.normalize(z2, dim=1).contiguous()))
        n = z1.size(0)
        z = torch.cat([z1, z2])
        sim = z @ z.t() / self.temperature
        sim.fill_diagonal_(float("-inf"))
        target = torch.cat([torch.arange(n) + n, torch.arange(n)])
        return F.cross_entropy(sim, target)


class SimCLR(nn.Module):
    def __init__(self, proj_dim, ch=8):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(1, ch, 3, 2, 1), nn.GroupNorm(2, ch), nn.ReLU(),
            nn.Conv2d(ch, ch * 2, 3, 2, 1), nn.GroupNorm(4, ch * 2), nn.ReLU(),
            nn.Flatten(),
        )
        self.projector = nn.Sequential(nn.Linear(ch * 2 * 16, 32), nn.ReLU(), nn.Linear(32, proj_dim))

    def forward(self, x1, x2):
        return self.projector(self.backbone(x1)), self.projector(self.backbone(x2))


def cosine_with_warmup(opt, cfg, steps_per_epoch):
    warm, total = cfg.warmup_epochs * steps_per_epoch, cfg.epochs * steps_per_epoch

    def factor(step):
        if step < warm:
            return (step + 1) / warm
        return 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, total - warm)))

    return torch.optim.lr_scheduler.LambdaLR(opt, factor)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=Config.epochs)
    parser.add_argument("--batch-size", type=int, default=Config.batch_size)
    parser.add_argument("--temperature", type=float, default=Config.temperature)
    args = parser.parse_args()
    cfg = Config(**vars(args))
    logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s")
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(cfg.seed)
    model = DDP(SimCLR(cfg.proj_dim))
    torch.manual_seed(cfg.seed + 1000 * (rank + 1))
    data = TwoViews()
    sampler = DistributedSampler(data, shuffle=True, drop_last=True)
    loader = DataLoader(data, cfg.batch_size, sampler=sampler, drop_last=True)
    criterion = NTXent(cfg.temperature)
    decay = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim <= 1]
    opt = torch.optim.SGD([{"params": decay, "weight_decay": 1e-4}, {"params": rest, "weight_decay": 0.0}],
                          lr=cfg.lr * cfg.batch_size * world / 32, momentum=0.9)
    sched = cosine_with_warmup(opt, cfg, len(loader))

    for epoch in range(cfg.epochs):
        sampler.set_epoch(epoch)
        losses = []
        for v1, v2 in loader:
            z1, z2 = model(v1, v2)
            loss = criterion(z1, z2)
            opt.zero_grad()
            loss.backward()
            opt.step()
            sched.step()
            losses.append(loss.item())
        if rank == 0:
            log.info("epoch %d nt-xent %.4f lr %.4f", epoch, sum(losses) / len(losses), sched.get_last_lr()[0])

    if rank == 0:
        with torch.no_grad():
            feats = F.normalize(model.module.backbone(data.images), dim=1)
            nn_idx = (feats @ feats.t()).fill_diagonal_(-1).argmax(1)
            acc = (data.labels[nn_idx] == data.labels).float().mean()
        log.info("1-nn accuracy %.3f", acc)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
