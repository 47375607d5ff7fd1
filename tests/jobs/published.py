"""Healthy trainings that are built as published scripts are: optimizers that share out their work, teachers, weights swapped in.

None of these has a wrapper's ordinary step: what ranks hold differs for a moment, or on purpose, and nothing is wrong.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, log_softmax, softmax
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from jobs.by_design import batches, net, rows
from jobs.replicas import digest_of_training

PASSES, MICRO_STEPS = 2, 2


def orthogonal(update: Tensor) -> Tensor:
    """A few steps of Newton's iteration towards the nearest matrix whose rows are orthogonal, as Muon takes them."""
    wide = update.T if update.size(0) > update.size(1) else update
    wide = wide / (wide.norm() + 1e-7)
    for _ in range(3):
        square = wide @ wide.T
        wide = 1.5 * wide - 0.5 * square @ wide
    return wide.T if update.size(0) > update.size(1) else wide


class SharedOut(torch.optim.Optimizer):
    """Each rank makes the updates of every n-th matrix, with a momentum that it alone keeps."""

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float, rank: int, world_size: int, how: str) -> None:
        super().__init__(list(parameters), {"lr": lr})
        self.rank, self.world_size, self.how = rank, world_size, how

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            parameters, rate = group["params"], group["lr"]
            (self._summed if self.how == "summed" else self._sent)(parameters, rate)

    def _update(self, parameter: nn.Parameter) -> Tensor:
        state = self.state[parameter]
        momentum = state.setdefault("momentum", torch.zeros_like(parameter))
        momentum.lerp_(parameter.grad, 0.05)  # type: ignore[arg-type]
        return orthogonal(parameter.grad.lerp_(momentum, 0.95))  # type: ignore[union-attr]

    def _summed(self, parameters: list[nn.Parameter], rate: float) -> None:
        """Everybody adds zeros where others made the update."""
        flat = torch.zeros(sum(parameter.numel() for parameter in parameters))
        parts = flat.split([parameter.numel() for parameter in parameters])
        for number, parameter in enumerate(parameters):
            if number % self.world_size == self.rank:
                parts[number].copy_(self._update(parameter).flatten())
        dist.all_reduce(flat)
        for part, parameter in zip(parts, parameters, strict=True):
            parameter.add_(part.view_as(parameter), alpha=-rate)

    def _sent(self, parameters: list[nn.Parameter], rate: float) -> None:
        """The owner changes its matrix, and all send theirs."""
        for first in range(0, len(parameters), self.world_size):
            several = parameters[first : first + self.world_size]
            if self.rank < len(several):
                own = several[self.rank]
                own.add_(self._update(own), alpha=-rate)
            for owner, parameter in enumerate(several):
                dist.broadcast(parameter, owner)


def _wide() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(12, 16), nn.ReLU(), *(nn.Linear(16, 16, bias=False) for _ in range(3)), nn.Linear(16, 4)
    )


def _accumulated(model: DistributedDataParallel, optimizers: list[Any], rank: int, world_size: int) -> str:
    """Losses are not divided: gradients are, after the last micro-step."""
    for _ in range(PASSES):
        pending = list(batches(rank, world_size))
        for first in range(0, len(pending) - MICRO_STEPS + 1, MICRO_STEPS):
            for number, (inputs, targets) in enumerate(pending[first : first + MICRO_STEPS], 1):
                model.require_backward_grad_sync = number == MICRO_STEPS
                cross_entropy(model(inputs), targets).backward()
            for parameter in model.parameters():
                parameter.grad /= MICRO_STEPS
            for optimizer in optimizers:
                optimizer.step()
            model.zero_grad(set_to_none=True)
    return digest_of_training(model)


def _muon(rank: int, world_size: int, how: str) -> str:
    model = DistributedDataParallel(_wide())
    matrices = [layer.weight for layer in model.module if isinstance(layer, nn.Linear) and layer.bias is None]
    others = [parameter for parameter in model.parameters() if all(parameter is not one for one in matrices)]
    optimizers = [torch.optim.AdamW(others, lr=1e-3), SharedOut(matrices, 0.02, rank, world_size, how)]
    return _accumulated(model, optimizers, rank, world_size)


def updates_summed_from_their_owners(rank: int, world_size: int) -> str:
    return _muon(rank, world_size, "summed")


def matrices_sent_by_their_owners(rank: int, world_size: int) -> str:
    return _muon(rank, world_size, "sent")


class ReducedInside(torch.optim.Optimizer):
    """Gradients are averaged in the step itself: each rank updates its slice of every parameter, and all gather the slices."""

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float, rank: int, world_size: int) -> None:
        super().__init__(list(parameters), {"lr": lr})
        self.rank, self.world_size = rank, world_size

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for parameter in self.param_groups[0]["params"]:
            gradient = parameter.grad.clone()
            dist.all_reduce(gradient)
            slices = [one.contiguous() for one in parameter.tensor_split(self.world_size)]
            own = gradient.tensor_split(self.world_size)[self.rank] / self.world_size
            state = self.state[parameter]
            square = state.setdefault("square", torch.zeros_like(own))
            square.lerp_(own * own, 0.1)
            slices[self.rank].sub_(own / (square.sqrt() + 1e-3), alpha=self.param_groups[0]["lr"])
            for owner, one in enumerate(slices):
                dist.broadcast(one, owner)
            parameter.copy_(torch.cat(slices))


def gradients_averaged_inside_the_step(rank: int, world_size: int) -> str:
    model = net()
    optimizer = ReducedInside(model.parameters(), 1e-2, rank, world_size)
    for inputs, targets in batches(rank, world_size):
        cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
    return digest_of_training(model)


class Headed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = net(), nn.utils.parametrizations.weight_norm(nn.Linear(4, 8, bias=False))
        self.head.parametrizations.weight.original0.requires_grad = False

    def forward(self, inputs: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(inputs))
        return out


def taught_by_an_average_of_itself(rank: int, world_size: int) -> str:
    """A teacher without a wrapper, a centre that all ranks average, and a head whose gradients are dropped in the first pass."""
    student, teacher = DistributedDataParallel(Headed()), Headed()
    teacher.load_state_dict(student.module.state_dict())
    teacher.requires_grad_(False)
    optimizer, centre = torch.optim.AdamW(student.parameters(), lr=1e-3), torch.zeros(1, 8)
    for epoch in range(PASSES):
        loader = batches(rank, world_size)
        loader.sampler.set_epoch(epoch)  # type: ignore[attr-defined]
        for number, (inputs, _) in enumerate(loader):
            targets = teacher(inputs)
            student_out = student(torch.cat([inputs, inputs + 0.05 * torch.randn_like(inputs)]))
            wanted = softmax((targets - centre) / 0.5, dim=-1)
            loss = -(torch.cat([wanted, wanted]) * log_softmax(student_out, dim=-1)).sum(-1).mean()
            found = targets.sum(0, keepdim=True)
            dist.all_reduce(found)
            centre = 0.9 * centre + 0.1 * found / (len(targets) * world_size)
            optimizer.zero_grad()
            loss.backward()
            if epoch == 0:
                for parameter in student.module.head.parameters():
                    parameter.grad = None
            optimizer.step()
            share = 1 - 0.01 * (1 + number)
            with torch.no_grad():
                for own, taught in zip(student.module.parameters(), teacher.parameters(), strict=True):
                    taught.mul_(share).add_(own, alpha=1 - share)
    return digest_of_training(student)


def _some_look(
    rank: int, world_size: int, looking: range, look: Callable[[DistributedDataParallel, nn.Module], None]
) -> str:
    model = DistributedDataParallel(net())
    average, optimizer = copy.deepcopy(model.module), torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(PASSES):
        loader = batches(rank, world_size)
        loader.sampler.set_epoch(epoch)  # type: ignore[attr-defined]
        for number, (inputs, targets) in enumerate(loader):
            optimizer.zero_grad()
            cross_entropy(model(inputs), targets).backward()
            optimizer.step()
            with torch.no_grad():
                for own, slow in zip(model.module.parameters(), average.parameters(), strict=True):
                    slow.lerp_(own, 0.1)
            if rank in looking and number % 4 == 1:
                look(model, average)
    return digest_of_training(model)


def the_average_is_swapped_in_on_one_rank(rank: int, world_size: int) -> str:
    """Rank 0 draws its samples with the averaged weights, and puts its own back."""

    @torch.no_grad()
    def look(model: DistributedDataParallel, average: nn.Module) -> None:
        kept = [parameter.clone() for parameter in model.module.parameters()]
        model.module.load_state_dict(average.state_dict())
        model.module(torch.randn(2, 12))
        for parameter, before in zip(model.module.parameters(), kept, strict=True):
            parameter.copy_(before)

    return _some_look(rank, world_size, range(1), look)


def one_rank_evaluates_through_the_wrapper(rank: int, world_size: int) -> str:
    """The others wait in their next backward pass."""

    @torch.no_grad()
    def look(model: DistributedDataParallel, average: nn.Module) -> None:
        model.eval()
        for inputs, targets in batches(0, 1, 16):
            cross_entropy(model(inputs), targets)
        model.train()

    return _some_look(rank, world_size, range(1), look)


def every_rank_evaluates_in_the_middle_of_the_pass(rank: int, world_size: int) -> str:
    """All on the same data, now and then: it is no training that lacks a sampler."""

    @torch.no_grad()
    def look(model: DistributedDataParallel, average: nn.Module) -> None:
        for inputs, targets in DataLoader(rows(), 16):
            cross_entropy(average(inputs), targets)

    return _some_look(rank, world_size, range(world_size), look)


PUBLISHED: tuple[Callable[[int, int], str], ...] = (
    updates_summed_from_their_owners,
    matrices_sent_by_their_owners,
    gradients_averaged_inside_the_step,
    taught_by_an_average_of_itself,
    the_average_is_swapped_in_on_one_rank,
    one_rank_evaluates_through_the_wrapper,
    every_rank_evaluates_in_the_middle_of_the_pass,
)
