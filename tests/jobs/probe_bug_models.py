"""The training of probe_bug_trainings.py with models and optimizers of every kind, compiled ones among them."""

from __future__ import annotations

import math
import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from jobs.probe_bug_steps import digest, steps


def compiled(rank: int, world_size: int, folder: str) -> str:
    """torch.compile, closures, averaged models, communication hooks, and what torch will take away."""
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4))
    model = DistributedDataParallel(layers, find_unused_parameters=True)
    found = _compiled_and_averaged(model)
    x = torch.randn(8, 16)
    found += _closures(x)
    found += list(torch.autograd.grad(nn.Linear(16, 4)(x.requires_grad_()).sum(), x))
    found += _reduced_by_hand(world_size, x.detach())
    _half_of_it_gathered(world_size, x.detach())
    inner = model.module
    found += steps(inner, torch.optim.SGD(inner.parameters(), lr=0.1), 2, x.detach())  # past the wrapper
    bad = nn.Linear(16, 4)
    bad.weight.data[0, 0] = math.nan
    found += [str(one) for one in steps(bad, torch.optim.SGD(bad.parameters(), lr=0.1), 2, x.detach())]
    return digest(*found, *model.parameters())


def _compiled_and_averaged(model: DistributedDataParallel) -> list[Any]:
    found: list[Any] = []
    fast = torch.compile(model, backend="eager")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    averaged = torch.optim.swa_utils.AveragedModel(model.module)
    for size in (4, 4, 6):
        found += steps(fast, optimizer, 2, torch.randn(size, 16))  # type: ignore[arg-type]
        averaged.update_parameters(model.module)
    return [*found, *averaged.parameters()]


def _closures(x: torch.Tensor) -> list[Any]:
    """LBFGS over a static graph with a communication hook, clipped in every way; autocast; DataParallel."""
    plain = DistributedDataParallel(nn.Linear(16, 4), static_graph=True, gradient_as_bucket_view=True)
    plain.register_comm_hook(None, torch.distributed.algorithms.ddp_comm_hooks.default_hooks.allreduce_hook)
    searching = torch.optim.LBFGS(plain.parameters(), lr=0.1, max_iter=3)

    def closure() -> torch.Tensor:
        searching.zero_grad()
        loss = plain(x).square().mean()
        loss.backward()
        return loss  # type: ignore[no-any-return]

    found: list[Any] = [searching.step(closure) for _ in range(3)]  # type: ignore[arg-type]
    with torch.amp.autocast("cpu", dtype=torch.bfloat16):
        found.append(plain(x).float())
    torch.cpu.amp.GradScaler(enabled=False)  # type: ignore[attr-defined]
    over = nn.DataParallel(nn.Linear(4, 4))
    found.append(over(torch.ones(2, 4)))
    norm = nn.utils.get_total_norm([p.grad for p in plain.parameters() if p.grad is not None])
    nn.utils.clip_grads_with_norm_(plain.parameters(), 1.0, norm)
    nn.utils.clip_grad_value_(plain.parameters(), 0.5)
    return found


def _gathered(features: torch.Tensor, world_size: int) -> list[torch.Tensor]:
    parts = [torch.zeros_like(features) for _ in range(world_size)]
    dist.all_gather(parts, features)
    return parts


def _reduced_by_hand(world_size: int, x: torch.Tensor) -> list[Any]:
    by_hand = nn.Linear(16, 4)
    for parameter in by_hand.parameters():
        dist.broadcast(parameter.data, 0)
    own = torch.optim.SGD(by_hand.parameters(), lr=0.1)
    for step in range(4):
        own.zero_grad(set_to_none=bool(step % 2))
        features = by_hand(x)
        (torch.cat(_gathered(features, world_size)).square().mean() + features.mean()).backward()
        for parameter in by_hand.parameters():
            dist.all_reduce(parameter.grad)
        own.step()
    return list(by_hand.parameters())


def _half_of_it_gathered(world_size: int, x: torch.Tensor) -> None:
    two = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 4))
    half = torch.optim.SGD(two[1].parameters(), lr=0.1)
    for _ in range(6):  # an optimizer that holds only a part of what is trained
        half.zero_grad()
        two[0](x).detach_()
        two(x).square().mean().backward()
        half.step()
    for _ in range(2):
        features = two[0](x)
        two[1](torch.cat([*_gathered(features.detach(), world_size), features])).square().mean().backward()
