"""MoCo-style pre-training with one memory queue per rank (more diverse negatives, nothing to gather)."""
import argparse
import logging
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

log = logging.getLogger("moco")


@dataclass
class Config:
    epochs: int = 6
    batch_size: int = 16
    queue: int = 64
    dim: int = 16
    momentum: float = 0.97
    temperature: float = 0.1
    lr: float = 0.02
    seed: int = 14


class Views(Dataset):
    def __init__(self, n=192):
        g = torch.Generator().manual_seed(0)
        coarse = 1.5 * torch.randn(n, 1, 4, 4, generator=g)
        self.images = F.interpolate(coarse, size=(12, 12), mode="bilinear", align_corners=False)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        def view(x):
            dy, dx = torch.randint(-1, 2, (2,)).tolist()
            return x.roll((dy, dx), (1, 2)) * (0.8 + 0.4 * torch.rand(())) + 0.1 * torch.randn_like(x)
        return view(self.images[i]), view(self.images[i])


def encoder(dim):
    return nn.Sequential(nn.Conv2d(1, 8, 3, 2, 1), nn.GroupNorm(2, 8), nn.ReLU(),
                         nn.Conv2d(8, 16, 3, 2, 1), nn.GroupNorm(4, 16), nn.ReLU(),
                         nn.Flatten(), nn.Linear(16 * 9, dim))


class MoCo(nn.Module):
    def __init__(self, cfg: Config):
        super().__init__()
        self.cfg = cfg
        self.query, self.key = encoder(cfg.dim), encoder(cfg.dim)
        self.key.load_state_dict(self.query.state_dict())
        self.key.requires_grad_(False)
        # rank-local: kept out of the state dict and out of DDP's buffer broadcast
        self.register_buffer("queue", torch.zeros(cfg.queue, cfg.dim), persistent=False)
        self.register_buffer("cursor", torch.zeros((), dtype=torch.long), persistent=False)

    @torch.no_grad()
    def advance_key(self):
        for q, k in zip(self.query.parameters(), self.key.parameters()):
            k.lerp_(q, 1 - self.cfg.momentum)

    @torch.no_grad()
    def fill_queue(self, images):
        self.queue.copy_(F.normalize(self.key(images[: self.cfg.queue]), dim=1))

    @torch.no_grad()
    def enqueue(self, keys):
        at = int(self.cursor)
        self.queue[at:at + len(keys)] = keys
        self.cursor.fill_((at + len(keys)) % self.cfg.queue)

    def forward(self, a, b):
        q = F.normalize(self.query(a), dim=1)
        with torch.no_grad():
            k = F.normalize(self.key(b), dim=1)
        logits = torch.cat([(q * k).sum(1, keepdim=True), q @ self.queue.clone().t()], 1) / self.cfg.temperature
        self.enqueue(k)
        return F.cross_entropy(logits, torch.zeros(len(a), dtype=torch.long))


def local_buffers(model):
    return [name for name, _ in model.named_buffers() if name in ("queue", "cursor")]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=Config.epochs)
    p.add_argument("--queue", type=int, default=Config.queue)
    a = p.parse_args()
    cfg = Config(epochs=a.epochs, queue=a.queue)
    logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s")
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(cfg.seed)
    net = MoCo(cfg)
    DDP._set_params_and_buffers_to_ignore_for_model(net, local_buffers(net))
    model = DDP(net)
    torch.manual_seed(cfg.seed * 1000 + rank)
    data = Views()
    sampler = DistributedSampler(data, seed=cfg.seed, drop_last=True)
    loader = DataLoader(data, cfg.batch_size, sampler=sampler, drop_last=True)
    net.fill_queue(data.images[rank::world])
    opt = torch.optim.SGD(net.query.parameters(), lr=cfg.lr, momentum=0.9, weight_decay=1e-4)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, cfg.epochs * len(loader))
    for epoch in range(cfg.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(1)
        for x1, x2 in loader:
            loss = model(x1, x2)
            opt.zero_grad()
            loss.backward()
            opt.step()
            sched.step()
            net.advance_key()
            total += loss.detach()
        dist.all_reduce(total)
        if rank == 0:
            log.info("epoch %d loss %.4f", epoch, total.item() / len(loader) / world)
    if rank == 0:
        out = Path("runs") / Path(__file__).stem
        out.mkdir(parents=True, exist_ok=True)
        torch.save(net.query.state_dict(), out / "backbone.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
