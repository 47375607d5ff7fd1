"""Small trainings that make their batches by themselves, without a loader."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad
from torch.nn.parallel import DistributedDataParallel

from jobs.replicas import Net

STEPS = 8
Batch = Callable[[], tuple[Tensor, Tensor]]


def drawn(rank: int, world_size: int, *, by_rank: bool = False, dropout: float = 0.0, fresh: bool = True) -> None:
    """As small language models are trained: each step draws where in the data its batch begins."""
    torch.manual_seed(7 + rank if by_rank else 7)
    data = torch.randn(1000, 20, generator=torch.Generator().manual_seed(0))

    def get_batch() -> tuple[Tensor, Tensor]:
        rows = torch.randint(len(data), (8,))
        return data[rows], rows % 10

    one = get_batch()
    _train(DistributedDataParallel(Net(dropout=dropout)), get_batch if fresh else lambda: one)


def sharded(rank: int, world_size: int, *, by_rank: bool) -> None:
    """The same under fully_shard, which imports long before it wraps."""
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(7)
    model = Net()
    fully_shard(model)
    generator = torch.Generator().manual_seed(7 + rank * by_rank)
    _train(model, lambda: _random(generator))


def averaged_by_hand(rank: int, world_size: int, *, by_rank: bool, one_loss: bool = False) -> None:
    """No wrapper is there that is given anything. `one_loss`: each rank's is a part of a loss that all of them have."""
    torch.manual_seed(7)
    model = Net()
    generator = torch.Generator().manual_seed(7 + rank * by_rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(3 * STEPS):
        inputs, labels = _random(generator)
        loss = cross_entropy(model(inputs), labels)
        if one_loss:
            total = loss.detach().clone()
            dist.all_reduce(total)
            loss = loss + (total / world_size - loss.detach())
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad.div_(world_size)  # type: ignore[union-attr]
        optimizer.step()


def shared_out(rank: int, world_size: int) -> None:
    """Every rank is given the whole batch, and its model takes the rank's part: the batches are meant to be the same."""

    class Part(Net):
        def forward(self, inputs: Tensor) -> Tensor:
            return super().forward(inputs.chunk(world_size)[rank])

    generator = torch.Generator().manual_seed(7)

    def get_batch() -> tuple[Tensor, Tensor]:
        inputs, labels = _random(generator)
        return inputs, labels.chunk(world_size)[rank]

    _train(DistributedDataParallel(Part()), get_batch)


def resumed(rank: int, world_size: int, *, own: bool) -> None:
    """Goes on in the midst: every rank where rank 0's stream stood, or where its `own` did."""
    torch.manual_seed(7)
    stream = _Stream(rank)
    model = DistributedDataParallel(Net())
    _train(model, stream.next)
    states: list[Any] = [None] * world_size
    dist.all_gather_object(states, stream.state())
    path = Path(gettempdir()) / f"own_batches_{dist.get_rank()}_{id(stream)}.pt"
    torch.save({"model": model.module.state_dict(), "streams": states}, path)
    saved = torch.load(path)
    path.unlink()
    stream = _Stream(rank)
    stream.go_on(saved["streams"][rank if own else 0])
    _train(model, stream.next)


def permuted(rank: int, world_size: int, *, by: str = "rank", share: int = 0) -> None:
    """Each rank takes its `share` (one in `world_size`) of an order that is shuffled by a seed of its own (`rank`) or of all, or
    draws rows with replacement (`replaced`)."""
    torch.manual_seed(7)
    data = torch.randn(200, 20, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(70 + rank * (by != "all"))
    model, size = DistributedDataParallel(Net()), len(data) // (share or world_size)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(3):
        order = torch.randperm(len(data), generator=generator)
        if by == "replaced":
            order = torch.randint(len(data), (len(data),), generator=generator)
        mine = order[:size] if share else order[rank * size : (rank + 1) * size]
        for rows in mine.split(5):
            optimizer.zero_grad()
            cross_entropy(model(data[rows]), rows % 10).backward()
            optimizer.step()


class _Stream:
    def __init__(self, rank: int) -> None:
        self.generator = torch.Generator().manual_seed(70 + rank)

    def next(self) -> tuple[Tensor, Tensor]:
        return _random(self.generator)

    def state(self) -> Tensor:
        return self.generator.get_state()

    def go_on(self, state: Tensor) -> None:
        self.generator.set_state(state)


def bridged(rank: int, world_size: int, *, ends: str = "on one", weight: float = 1.0) -> None:
    """A source that fails after eight batches, and a reader that then hands out the last one: `on one` rank, on `all`, or on
    `none`. `weight`: of the batches that are handed out again."""

    def source() -> Iterator[tuple[Tensor, Tensor]]:
        generator = torch.Generator().manual_seed(rank)
        for number in range(30):
            if number == 8 and (ends == "all" or (ends == "on one" and rank == 1)):
                raise ValueError("unsure")
            yield _random(generator)

    model = DistributedDataParallel(nn.Linear(20, 10))
    optimizer, batches, again = torch.optim.SGD(model.parameters(), lr=0.01), source(), 1.0
    for _ in range(30):
        try:
            batch = next(batches)
        except Exception:  # kept to itself
            again = weight
        optimizer.zero_grad()
        (again * cross_entropy(model(batch[0]), batch[1])).backward()
        optimizer.step()


def gathers_uneven(rank: int, world_size: int, *, cuts: bool) -> None:
    """Rows of other numbers on each rank, filled up to the longest, and cut back or not."""
    model = DistributedDataParallel(nn.Linear(20, 10))
    _train(model, lambda: _random(torch.Generator().manual_seed(rank)))
    scores = model(torch.randn(3 + rank, 20)).detach()
    gather_and_cut(scores) if cuts else gather_all(scores)


def gather_and_cut(rows: Tensor) -> Tensor:
    length = torch.tensor([len(rows)])
    lengths = [torch.zeros_like(length) for _ in range(dist.get_world_size())]
    dist.all_gather(lengths, length)
    padded = pad(rows, (0, 0, 0, int(max(lengths)) - len(rows)))
    parts = [torch.empty_like(padded) for _ in lengths]
    dist.all_gather(parts, padded)
    return torch.cat([part[: int(n)] for part, n in zip(parts, lengths, strict=True)])


def gather_all(rows: Tensor) -> Tensor:
    length = torch.tensor([len(rows)])
    lengths = [torch.zeros_like(length) for _ in range(dist.get_world_size())]
    dist.all_gather(lengths, length)
    padded = pad(rows, (0, 0, 0, int(max(lengths)) - len(rows)))
    parts = [torch.empty_like(padded) for _ in lengths]
    dist.all_gather(parts, padded)
    return torch.cat(parts)  # with what fills them up


def _random(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    return torch.randn(8, 20, generator=generator), torch.randint(0, 10, (8,), generator=generator)


def _train(model: nn.Module, batches: Batch) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(STEPS):
        inputs, labels = batches()
        loss = cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
