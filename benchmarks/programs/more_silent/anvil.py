"""DiLoCo: every rank trains alone for H steps, then an outer Nesterov step on the averaged displacement."""
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


@dataclass
class DilocoConfig:
    inner_steps: int = 12
    rounds: int = 8
    inner_lr: float = 3e-3
    outer_lr: float = 0.7
    outer_momentum: float = 0.9
    batch: int = 16
    seed: int = 0


class OuterLoop:
    """Holds the shared weights; the model itself wanders off between two rounds."""

    def __init__(self, model: nn.Module, cfg: DilocoConfig):
        self.model = model
        self.shared = [p.detach().clone() for p in model.parameters()]
        for s in self.shared:
            dist.broadcast(s, src=0)
        self.shared = [s.requires_grad_() for s in self.shared]
        self.opt = torch.optim.SGD(self.shared, lr=cfg.outer_lr, momentum=cfg.outer_momentum, nesterov=True)
        self._push()

    @torch.no_grad()
    def _push(self):
        for p, s in zip(self.model.parameters(), self.shared):
            p.copy_(s)

    @torch.no_grad()
    def sync(self):
        world = dist.get_world_size()
        for p, s in zip(self.model.parameters(), self.shared):
            displacement = s - p
            dist.all_reduce(displacement)
            s.grad = displacement / world
        self.opt.step()
        self._push()


def endless(loader, sampler):
    epoch = 0
    while True:
        sampler.set_epoch(epoch)
        yield from loader
        epoch += 1


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    cfg = DilocoConfig()
    torch.manual_seed(cfg.seed + rank)
    g = torch.Generator().manual_seed(1)
    x = torch.randn(900, 20, generator=g)
    y = (x @ torch.randn(20, 5, generator=g)).argmax(1)
    data = TensorDataset(x, y)
    sampler = DistributedSampler(data, seed=9)
    batches = endless(DataLoader(data, batch_size=cfg.batch, sampler=sampler), sampler)

    model = nn.Sequential(nn.Linear(20, 64), nn.GELU(), nn.Linear(64, 5))
    outer = OuterLoop(model, cfg)
    inner = torch.optim.AdamW(model.parameters(), lr=cfg.inner_lr)   # its moments stay local
    for rnd in range(cfg.rounds):
        for _ in range(cfg.inner_steps):
            xb, yb = next(batches)
            loss = F.cross_entropy(model(xb), yb)
            inner.zero_grad()
            loss.backward()
            inner.step()
        outer.sync()
        if rank == 0:
            with torch.no_grad():
                acc = (model(x).argmax(1) == y).float().mean().item()
            print(f"round {rnd}: accuracy of the shared weights {acc:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
