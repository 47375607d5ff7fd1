"""Schedules that accelerate moves once for every process, and the healthy ones most like them."""

from __future__ import annotations

import os

import torch
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import CosineAnnealingLR, CosineAnnealingWarmRestarts, LambdaLR, LRScheduler, PolynomialLR
from torch.utils.data import DataLoader, TensorDataset

from jobs.replicas import Net, digest_of_training

EPOCHS = 4


def annealed(rank: int, world_size: int, *, shape: str = "cosine", prepares: bool = True) -> str:
    """`shape`: one that rises again behind its end, stays there (`flat`), begins `anew` by intention, or is over soon
    for the first group of parameters alone (`group`)."""
    from accelerate import Accelerator

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", LOCAL_WORLD_SIZE=str(world_size))
    accelerator = Accelerator(cpu=True)
    rows = TensorDataset(torch.randn(120, 20, generator=torch.Generator().manual_seed(3)), torch.arange(120) % 10)
    net = Net()
    weights = list(net.parameters())
    groups = [weights[:1], weights[1:]] if shape == "group" else [weights]
    optimizer = torch.optim.AdamW([{"params": group} for group in groups], lr=1e-2)
    model, optimizer, loader = accelerator.prepare(net, optimizer, DataLoader(rows, 4, shuffle=True))
    steps = EPOCHS * len(loader)
    schedule: LRScheduler
    if shape == "anew":
        schedule = CosineAnnealingWarmRestarts(optimizer.optimizer, steps)
    elif shape == "group":
        schedule = LambdaLR(optimizer.optimizer, [lambda step: max(0.0, 1 - 1.25 * step / steps), lambda _: 1.0])
    elif shape == "flat":
        schedule = PolynomialLR(optimizer.optimizer, total_iters=steps)
    else:
        schedule = CosineAnnealingLR(optimizer.optimizer, T_max=steps, eta_min=1e-6)
    if prepares:
        schedule = accelerator.prepare(schedule)  # for all processes
    for _epoch in range(EPOCHS):
        for inputs, targets in loader:
            optimizer.zero_grad()
            accelerator.backward(cross_entropy(model(inputs), targets))
            optimizer.step()
            schedule.step()
    return digest_of_training(net)
