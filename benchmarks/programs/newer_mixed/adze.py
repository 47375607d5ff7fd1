"""Multi-task model on one trunk whose head is exchanged between two phases."""
import logging
from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

cfg = SimpleNamespace(phase_steps=[20, 20], batch=16, lr=4e-3, classes=[4, 7], seed=19)
logging.basicConfig(level=logging.INFO, format="%(message)s")


class Shared(nn.Module):
    """Encoder and decoder use the same matrix, once as it is and once transposed."""

    def __init__(self, dim=18, width=10):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, dim) / dim ** 0.5)
        self.bias_in = nn.Parameter(torch.zeros(width))
        self.bias_out = nn.Parameter(torch.zeros(dim))

    def encode(self, x):
        return torch.relu(F.linear(x, self.weight, self.bias_in))

    def decode(self, h):
        return F.linear(h, self.weight.t(), self.bias_out)


class Model(nn.Module):
    def __init__(self, trunk, classes):
        super().__init__()
        self.trunk = trunk
        self.head = nn.Linear(10, classes)

    def forward(self, x):
        h = self.trunk.encode(x)
        return self.head(h), self.trunk.decode(h)


def batch(gen, classes):
    x = torch.randn(cfg.batch, 18, generator=gen)
    return x, x[:, :classes].argmax(1)


def phase(model, steps, classes, gen, carried):
    ddp = DDP(model, static_graph=True)
    opt = torch.optim.Adam(model.parameters(), lr=cfg.lr)
    for p, s in carried.items():
        opt.state[p] = s
    for _ in range(steps):
        x, y = batch(gen, classes)
        logits, back = ddp(x)
        loss = F.cross_entropy(logits, y) + 0.5 * F.mse_loss(back, x)
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss.item(), {p: opt.state[p] for p in model.trunk.parameters()}


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(cfg.seed)
    gen = torch.Generator().manual_seed(cfg.seed * 10 + rank)
    trunk = Shared()
    carried = {}
    for i, (steps, classes) in enumerate(zip(cfg.phase_steps, cfg.classes)):
        model = Model(trunk, classes)
        loss, carried = phase(model, steps, classes, gen, carried)
        if rank == 0:
            logging.info("phase %d with %d classes: loss %.4f", i, classes, loss)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
