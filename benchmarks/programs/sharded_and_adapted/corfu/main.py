"""Low-communication training: workers take many local steps, then an outer optimizer merges them.

Inner optimizer AdamW, outer optimizer SGD with Nesterov momentum on the averaged displacement.
"""
import argparse
import logging
import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

log = logging.getLogger("diloco")


@dataclass
class Setup:
    epochs: int = 5
    batch: int = 32
    local_steps: int = 12
    inner_lr: float = 2e-3
    outer_lr: float = 0.7
    outer_momentum: float = 0.6
    seed: int = 31
    out: str = "runs/corfu"


def spiral(n, seed, arms=5):
    g = torch.Generator().manual_seed(seed)
    arm = torch.randint(0, arms, (n,), generator=g)
    r = torch.rand(n, generator=g) * 0.9 + 0.1
    theta = 4 * r + arm * (6.2832 / arms) + 0.12 * torch.randn(n, generator=g)
    return TensorDataset(torch.stack([r * theta.cos(), r * theta.sin()], 1), arm)


class Net(nn.Module):
    def __init__(self, width=96, arms=5):
        super().__init__()
        self.register_buffer("freq", torch.tensor([1.0, 2.0, 4.0]))
        self.net = nn.Sequential(nn.Linear(14, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(),
                                 nn.Linear(width, arms))

    def forward(self, x):
        waves = (x.unsqueeze(-1) * self.freq).flatten(1)
        return self.net(torch.cat([x, waves.sin(), waves.cos()], 1))


class OuterLoop:
    """Holds the shared weights and moves them by the averaged change of all workers."""

    def __init__(self, model, lr, momentum):
        self.model = model
        self.anchor = [p.detach().clone() for p in model.parameters()]
        self.shadow = [nn.Parameter(a.clone()) for a in self.anchor]
        self.optimizer = torch.optim.SGD(self.shadow, lr=lr, momentum=momentum, nesterov=True)
        self.rounds = 0

    @torch.no_grad()
    def merge(self):
        world = dist.get_world_size()
        delta = torch.cat([(a - p).reshape(-1) for a, p in zip(self.anchor, self.model.parameters())])
        dist.all_reduce(delta)
        delta /= world
        offset = 0
        for s in self.shadow:
            s.grad = delta[offset:offset + s.numel()].view_as(s).clone()
            offset += s.numel()
        self.optimizer.step()
        for a, s, p in zip(self.anchor, self.shadow, self.model.parameters()):
            a.copy_(s)
            p.copy_(s)
        self.rounds += 1
        return delta.norm().item()


@torch.no_grad()
def accuracy(model, data):
    model.eval()
    x, y = data.tensors
    rank, world = dist.get_rank(), dist.get_world_size()
    hit = (model(x[rank::world]).argmax(-1) == y[rank::world])
    pair = torch.tensor([hit.sum().item(), hit.numel()])
    dist.all_reduce(pair)
    model.train()
    return pair[0].item() / pair[1].item()


def train(cfg):
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(cfg.seed)
    model = Net()
    train_set, valid_set = spiral(1536, seed=1), spiral(500, seed=2)
    sampler = DistributedSampler(train_set, shuffle=True, seed=cfg.seed)
    loader = DataLoader(train_set, batch_size=cfg.batch, sampler=sampler)
    inner = torch.optim.AdamW(model.parameters(), lr=cfg.inner_lr, weight_decay=1e-3)
    outer = OuterLoop(model, cfg.outer_lr, cfg.outer_momentum)
    step = 0
    for epoch in range(cfg.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(2)
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            inner.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            inner.step()
            total += torch.tensor([loss.item() * len(y), len(y)])
            step += 1
            if step % cfg.local_steps == 0:
                moved = outer.merge()
                if outer.rounds % 3 == 0:
                    log.info("round %d displacement %.4f", outer.rounds, moved)
        if step % cfg.local_steps:
            outer.merge()
            step = 0
        dist.all_reduce(total)
        acc = accuracy(model, valid_set)
        log.info("epoch %d loss %.4f accuracy %.4f", epoch, total[0] / total[1], acc)
    if rank == 0:
        os.makedirs(cfg.out, exist_ok=True)
        torch.save({"model": model.state_dict(), "rounds": outer.rounds}, os.path.join(cfg.out, "merged.pt"))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--local-steps", type=int, default=Setup.local_steps)
    ap.add_argument("--epochs", type=int, default=Setup.epochs)
    ns = ap.parse_args()
    dist.init_process_group("gloo")
    logging.basicConfig(level=logging.INFO if dist.get_rank() == 0 else logging.ERROR, format="%(message)s")
    train(Setup(local_steps=ns.local_steps, epochs=ns.epochs))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
