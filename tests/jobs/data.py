"""Small trainings in which the samples stream is watched: what each rank was really handed, beside what the probe wrote."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import random
import resource
import signal
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
    get_worker_info,
)
from torch.utils.data.distributed import DistributedSampler

from distdoctor.recording.recording import Job, Recording
from distdoctor.recording.trace.probe_settings import ProbeSettings
from distdoctor.recording.trace.run_folder import read_run
from jobs import run_ranks, values

Handed = list[list[int]]
"""The samples of each training pass, as they came out of the loader."""


def unwatched(target: Callable[..., Any], *, ranks: int = 2, timeout: float = 150, **about: Any) -> list[Any]:
    """What each rank returns when there is no probe."""
    with tempfile.TemporaryDirectory() as folder:
        return values(run_ranks(_ordinary, ranks, target, folder, about, timeout=timeout, join=False))


def killed(target: Callable[..., Any], *, ranks: int = 2, timeout: float = 150, **about: Any) -> Recording:
    """The recording of a job whose ranks kill themselves."""
    with tempfile.TemporaryDirectory() as folder:
        ends = run_ranks(_watched, ranks, target, folder, about, timeout=timeout, join=False)
        assert [(end.exit_code, end.timed_out) for end in ends] == [(-9, False)] * ranks
        return read_run(Path(folder))


def watched(
    target: Callable[..., Any], *, ranks: int = 2, timeout: float = 150, **about: Any
) -> tuple[Recording, list[Any]]:
    """The recording of a job, and what each rank returned."""
    with tempfile.TemporaryDirectory() as folder:
        returned = values(run_ranks(_watched, ranks, target, folder, about, timeout=timeout, join=False))
        recording = read_run(Path(folder))
        assert not recording.troubles, recording.troubles
        assert all(file.content for log in recording.ranks.values() for file in log.drawn_sets.values())
        source = Path(__file__).read_text("utf-8")
        return Recording(Job(world_size=ranks), recording.ranks, sources={__file__: source}), returned


def failed(target: Callable[..., Any], *, ranks: int = 2, timeout: float = 150, **about: Any) -> Recording:
    """The recording of a job whose ranks end with an exception."""
    with tempfile.TemporaryDirectory() as folder:
        ends = run_ranks(_failing, ranks, target, folder, about, timeout=timeout, join=False)
        assert [(end.exit_code, end.timed_out) for end in ends] == [(1, False)] * ranks
        source = Path(__file__).read_text("utf-8")
        return replace(read_run(Path(folder)), sources={__file__: source})


def _failing(rank: int, world_size: int, target: Callable[..., Any], folder: str, about: dict[str, Any]) -> None:
    try:
        _watched(rank, world_size, target, folder, about)
    except Exception as error:
        from distdoctor.probe.start import note_exception

        note_exception(error)
        raise


def _ordinary(rank: int, world_size: int, target: Callable[..., Any], folder: str, about: dict[str, Any]) -> Any:
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world_size)
    torch.manual_seed(0)
    returned = target(rank, world_size, **about)
    dist.destroy_process_group()
    return returned


def _watched(rank: int, world_size: int, target: Callable[..., Any], folder: str, about: dict[str, Any]) -> Any:
    # Ranks of the tests are daemons, which must not have children; those of a launcher may have DataLoader workers.
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    from distdoctor.probe.start import start

    start(folder, ProbeSettings(frozenset({"collectives", "progress", "samples"})))  # what the checks on data ask for
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world_size)
    torch.manual_seed(0)
    returned = target(rank, world_size, **about)
    dist.destroy_process_group()
    return returned


def one_after_the_other(
    rank: int, world_size: int, trainings: list[tuple[Callable[..., Handed], dict[str, Any]]]
) -> Handed:
    """Several trainings in one job, which start faster than as many jobs."""
    return [handed for training, about in trainings for handed in training(rank, world_size, **about)]


class Numbers(Dataset[torch.Tensor]):
    """Sample i is the number i."""

    def __init__(self, length: int) -> None:
        self.numbers = range(length)

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([float(index)])


class Trainer:
    """A model behind DistributedDataParallel (or alone) and the one step that matters here."""

    def __init__(self, *, replicas: bool = True) -> None:
        model: nn.Module = nn.Linear(1, 1)
        self.model = nn.parallel.DistributedDataParallel(model) if replicas else model
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-9)

    def step(self, batch: torch.Tensor) -> list[int]:
        self.optimizer.zero_grad()
        self.model(batch).sum().backward()
        self.optimizer.step()
        return [int(number) for number in batch[:, 0]]

    def epoch(self, loader: Iterable[torch.Tensor], limit: int | None = None) -> list[int]:
        handed = []
        for batch in itertools.islice(loader, limit):
            handed += self.step(batch)
        return handed

    @torch.no_grad()
    def test(self, loader: Iterable[torch.Tensor]) -> None:
        for batch in loader:
            self.model(batch)


def numbers(length: int) -> TensorDataset | Numbers:
    return Numbers(length)


class Noisy(Numbers):
    """Draws from the generators of its worker."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return super().__getitem__(index) + torch.rand(1) + random.random()


def everything_random(rank: int, world_size: int) -> list[str]:
    """Losses, to the last bit, of a training that draws from every generator there is."""
    torch.manual_seed(rank)
    random.seed(rank)
    model = nn.Sequential(nn.Linear(1, 8), nn.Dropout(0.5), nn.Linear(8, 1))
    wrapped = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=1e-4)
    data = Noisy(64)
    loaders = [
        DataLoader(data, batch_size=8, shuffle=True),
        DataLoader(data, batch_size=8, sampler=DistributedSampler(data), num_workers=2, persistent_workers=True),
        DataLoader(Copies(3), batch_size=8, num_workers=1),
        DataLoader(Subset(data, range(0, 64, 2)), batch_sampler=BatchSampler(RandomSampler(range(32)), 4, True)),
    ]
    losses = []
    for loader in loaders * 2:
        for batch in loader:
            optimizer.zero_grad()
            loss = wrapped(batch).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item().hex())
    return [*losses, *(value.hex() for p in model.parameters() for value in p.detach().flatten().tolist())]


def kept_in_a_list(rank: int, world_size: int, *, kept: bool = True) -> Handed:
    """All batches of the loader are read once, and every epoch goes through them."""
    data, trainer = numbers(64), Trainer()
    sampler: DistributedSampler[Any] = DistributedSampler(data)
    loader = DataLoader(data, batch_size=4, sampler=sampler)
    batches: Iterable[Any] = loader
    if kept:
        batches = list(loader)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for batch in batches:
            trainer.step(batch)
    return []


class Named(Numbers):
    """Samples in the order of a list of names."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = list(names)
        super().__init__(len(self.names))

    def __getitem__(self, index: int) -> torch.Tensor:
        return super().__getitem__(int(self.names[index].removeprefix("part-")))


def listed_in_any_order(rank: int, world_size: int, *, sort: bool = False) -> Handed:
    """The samples come from a listing whose order is each rank's own, as that of a set of texts is."""
    names = [f"part-{number}" for number in range(60)]
    random.Random(rank).shuffle(names)
    data, trainer = Named(sorted(names) if sort else names), Trainer()
    sampler: DistributedSampler[Any] = DistributedSampler(data)
    loader = DataLoader(data, batch_size=4, sampler=sampler)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        trainer.epoch(loader)
    return []


class Rows(Numbers):
    """Shuffles its rows as it is made, by the default generator, which nobody has seeded; or by one with a seed."""

    def __init__(self, rows: Any, *, seeded: bool = False) -> None:
        super().__init__(len(rows))
        order = list(range(len(rows)))
        (random.Random(1) if seeded else random).shuffle(order)
        self.rows = rows[order] if isinstance(rows, torch.Tensor) else [rows[number] for number in order]

    def __getitem__(self, index: int) -> torch.Tensor:
        row = self.rows[index]
        return super().__getitem__(int(row["id"] if isinstance(row, dict) else getattr(row, "id", row)))


def rows_in_any_order(rank: int, world_size: int, *, of: str = "dicts", seeded: bool = False) -> Handed:
    random.seed()
    rows: Any = torch.arange(60.0) if of == "tensor" else [{"id": n, "text": [n, 2 * n]} for n in range(60)]
    if of == "objects":
        rows = [SimpleNamespace(**row) for row in rows]
    data, trainer = Rows(rows, seeded=seeded), Trainer()
    sampler: DistributedSampler[Any] = DistributedSampler(data)
    loader = DataLoader(data, batch_size=4, sampler=sampler)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        trainer.epoch(loader)
    return []


def blocks_of_whole_batches(rank: int, world_size: int, *, anew: bool = False) -> Handed:
    """Each rank has a block of the data, rounded down to whole batches; `anew`: of another order in each epoch."""
    data, trainer = numbers(100), Trainer()
    each = len(data) // world_size // 16 * 16
    for epoch in range(3):
        order = torch.randperm(len(data), generator=torch.Generator().manual_seed(epoch)).tolist()
        own = (order if anew else range(len(data)))[rank * each : (rank + 1) * each]
        trainer.epoch(DataLoader(Subset(data, own), batch_size=16, shuffle=True))
    return []


def killed_at_its_thirteenth_batch(rank: int, world_size: int, *, workers: int = 0) -> None:
    data, trainer = numbers(400), Trainer(replicas=False)
    loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data), num_workers=workers)
    for number, batch in enumerate(loader, 1):
        if number == 13:
            os.kill(os.getpid(), signal.SIGKILL)
        trainer.step(batch)


# --- ill ------------------------------------------------------------------------------------------------------------------


def never_told(rank: int, world_size: int, *, workers: int = 0, batches: int | None = None, epochs: int = 2) -> Handed:
    data = numbers(101)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler, num_workers=workers, persistent_workers=workers > 0)
    trainer = Trainer()
    handed = []
    for _epoch in range(epochs):
        handed.append(trainer.epoch(loader, batches))
    return handed


def told_the_total(rank: int, world_size: int) -> Handed:
    data = numbers(101)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    trainer, epochs, handed = Trainer(), 2, []
    for _epoch in range(epochs):
        sampler.set_epoch(epochs)
        handed.append([number for batch in loader for number in trainer.step(batch)])
    return handed


def seeded_by_rank(rank: int, world_size: int, *, length: int = 101) -> Handed:
    data = numbers(length)
    loader = DataLoader(data, batch_size=64, sampler=DistributedSampler(data, seed=rank))
    return [Trainer().epoch(loader)]


def overlapping_subsets(rank: int, world_size: int) -> Handed:
    data = numbers(100)
    half = Subset(data, list(range(40 * rank, 40 * rank + 60)))
    return [Trainer().epoch(DataLoader(half, batch_size=4, shuffle=True))]


def not_sharded(rank: int, world_size: int, *, same_seed: bool = True) -> Handed:
    if not same_seed:
        torch.manual_seed(rank)
    loader = DataLoader(numbers(100), batch_size=8, shuffle=True)
    trainer = Trainer()
    return [trainer.epoch(loader) for _epoch in range(2)]


def with_a_baseline(rank: int, world_size: int) -> Handed:
    """Before the replicas train, each rank trains a model of its own on everything, to compare with."""
    data = numbers(100)
    Trainer(replicas=False).epoch(DataLoader(data, batch_size=8, shuffle=True))
    sampler: DistributedSampler[Any] = DistributedSampler(data)
    return [Trainer().epoch(DataLoader(data, batch_size=8, sampler=sampler))]


def split_by_rank(rank: int, world_size: int, *, seed_alike: bool = False) -> Handed:
    data, trainer = numbers(200), Trainer()
    generator = torch.Generator().manual_seed(0 if seed_alike else rank)
    train, test = torch.utils.data.random_split(data, [120, 80], generator=generator)
    mine, others = DistributedSampler(train), DistributedSampler(test, shuffle=False)
    handed = trainer.epoch(DataLoader(train, batch_size=4, sampler=mine))
    trainer.test(DataLoader(test, batch_size=4, sampler=others))
    return [handed]


def rank_of_another_world(rank: int, world_size: int) -> Handed:
    data = numbers(100)
    sampler: DistributedSampler[Any] = DistributedSampler(data, num_replicas=4, rank=rank)
    return [Trainer().epoch(DataLoader(data, batch_size=4, sampler=sampler))]


class EveryNthBatch(BatchSampler):
    """The batches of another sampler that are a rank's own, as libraries deal them out."""

    def __init__(self, inner: BatchSampler, rank: int, world_size: int) -> None:
        self.inner, self.rank, self.world_size = inner, rank, world_size

    def __iter__(self) -> Iterator[list[int]]:
        return (batch for number, batch in enumerate(self.inner) if number % self.world_size == self.rank)

    def __len__(self) -> int:
        return len(self.inner) // self.world_size


def batches_dealt_out(rank: int, world_size: int, *, once: bool = False) -> Handed:
    """Batches dealt out by rank, of a sampler that deals out already; or, `once`, of a shuffle that all ranks have alike."""
    data, trainer = numbers(160), Trainer()
    generator = torch.Generator().manual_seed(5)
    mine: Sampler[int] = RandomSampler(data, generator=generator) if once else DistributedSampler(data)
    batches = EveryNthBatch(BatchSampler(mine, 4, drop_last=False), rank, world_size)
    loader = DataLoader(data, batch_sampler=batches)
    handed = []
    for epoch in range(2):
        if isinstance(mine, DistributedSampler):
            mine.set_epoch(epoch)
        handed.append(trainer.epoch(loader))
    return handed


def uneven(rank: int, world_size: int) -> Handed:
    data, trainer = numbers(100), Trainer()
    mine = Subset(data, list(range(60)) if rank == 0 else list(range(60, 100)))
    with trainer.model.join():  # type: ignore[union-attr, operator]
        return [trainer.epoch(DataLoader(mine, batch_size=4))]


class InOrder(Sampler[int]):
    """A sampler for evaluations as many libraries have one. With `evenly` it fills up the last round."""

    def __init__(self, length: int, rank: int, num_replicas: int, *, evenly: bool) -> None:
        self.length, self.rank, self.num_replicas, self.evenly = length, rank, num_replicas, evenly

    def __iter__(self) -> Iterator[int]:
        order = list(range(self.length))
        if self.evenly:
            order += order[: -self.length % self.num_replicas]
        return iter(order[self.rank :: self.num_replicas])


def padded_test(rank: int, world_size: int, *, own: bool = False, evenly: bool = True) -> Handed:
    data, test, trainer = numbers(64), numbers(31), Trainer()
    handed = trainer.epoch(DataLoader(data, batch_size=4, sampler=DistributedSampler(data)))
    sampler: Sampler[int] = DistributedSampler(test, shuffle=False)
    if own:
        sampler = InOrder(31, rank, world_size, evenly=evenly)
    trainer.test(DataLoader(test, batch_size=4, sampler=sampler))
    return [handed]


def gathered_test(rank: int, world_size: int, *, in_order: bool = False) -> Handed:
    """Puts together what the ranks have evaluated: rank after rank, or in the order in which the sampler deals."""
    data, test, trainer = numbers(64), numbers(31), Trainer()
    handed = trainer.epoch(DataLoader(data, batch_size=4, sampler=DistributedSampler(data)))
    loader = DataLoader(test, batch_size=4, sampler=DistributedSampler(test, shuffle=False))
    for _ in range(2):
        trainer.model.eval()
        with torch.no_grad():
            mine = torch.cat([batch.flatten() for batch in loader])
        trainer.model.train()
        (in_turn if in_order else rank_after_rank)(mine, len(test))
        trainer.epoch(DataLoader(data, batch_size=4, sampler=DistributedSampler(data)))
    return [handed]


def rank_after_rank(mine: Tensor, length: int) -> Tensor:
    parts = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, mine)
    return torch.cat(parts)[:length]  # one after the other


def in_turn(mine: Tensor, length: int) -> Tensor:
    parts = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, mine)
    return torch.stack(parts, 1).flatten()[:length]


def languages(rank: int, world_size: int, *, weighted: bool = False, alike: bool = False) -> Handed:
    """Each rank evaluates a part of its own, as the test set of one language."""
    data, trainer = numbers(64), Trainer()
    handed = trainer.epoch(DataLoader(data, batch_size=4, sampler=DistributedSampler(data)))
    test = Subset(numbers(60), range(30) if alike else range(40) if rank == 0 else range(40, 50))
    right, count = counted_right(DataLoader(test, batch_size=5))
    if weighted:
        both = torch.tensor([right, float(count)])
        dist.all_reduce(both)
    else:
        score = torch.tensor(right / count)  # of its own
        dist.all_reduce(score)
        score /= world_size
    trainer.epoch(DataLoader(data, batch_size=4, sampler=DistributedSampler(data)))
    return [handed]


@torch.no_grad()
def counted_right(loader: DataLoader[Any]) -> tuple[float, int]:
    right, count = 0.0, 0
    for batch in loader:
        right += float((batch > 20).sum())
        count += len(batch)
    return right, count


def accounts(rank: int, world_size: int, *, weighted: bool = False, alike: bool = False) -> Handed:
    """Each rank evaluates the accounts that are dealt to it, of which some are long; no loader reads them."""
    data, trainer = numbers(64), Trainer()
    handed = trainer.epoch(DataLoader(data, batch_size=4, sampler=DistributedSampler(data)))
    model = nn.Linear(1, 1)
    shares = [torch.ones(6 if alike or number % 2 else 24, 1) for number in range(6)]
    errors = of_accounts(model, shares[rank::world_size])
    if weighted:
        total = torch.stack([errors.sum(), torch.tensor(float(len(errors)))])
        dist.all_reduce(total)
    else:
        error = errors.mean()  # of its own
        dist.all_reduce(error)
        error /= world_size
    model.train()
    trainer.epoch(DataLoader(data, batch_size=4, sampler=DistributedSampler(data)))
    return [handed]


def sentences(rank: int, world_size: int, *, weighted: bool = False, alike: bool = False) -> Handed:
    """Each rank evaluates as many rows as the other, of which one has the short ones, and divides by the tokens in them."""
    data, trainer = numbers(64), Trainer()
    handed = trainer.epoch(DataLoader(data, batch_size=4, sampler=DistributedSampler(data)))
    model = nn.Linear(1, 1)
    rows = [torch.ones(4, 30 if rank or alike else 6, 1) for _ in range(5)]
    error, tokens = tokens_of(model, rows)
    if weighted:
        total = torch.stack([error, tokens])
        dist.all_reduce(total)
    else:
        mean = error / tokens  # of its own
        dist.all_reduce(mean)
        mean /= world_size
    model.train()
    trainer.epoch(DataLoader(data, batch_size=4, sampler=DistributedSampler(data)))
    return [handed]


@torch.no_grad()
def tokens_of(model: nn.Module, rows: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    model.eval()
    error, tokens = torch.zeros(()), torch.zeros(())
    for batch in rows:
        error += model(batch).abs().sum()
        tokens += (batch != 0).sum()
    return error, tokens


@torch.no_grad()
def of_accounts(model: nn.Module, shares: list[torch.Tensor]) -> torch.Tensor:
    model.eval()
    return torch.cat([model(share).abs().flatten() for share in shares])


def averaged_by_hand(rank: int, world_size: int) -> Handed:
    torch.manual_seed(1)
    loader = DataLoader(numbers(64), batch_size=8, shuffle=True)
    model, handed = nn.Sequential(nn.Linear(1, 3), nn.Linear(3, 1)), []
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    for batch in loader:
        optimizer.zero_grad()
        model(batch).sum().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        handed += [int(number) for number in batch[:, 0]]
    return [handed]


def trials(rank: int, world_size: int) -> Handed:
    """Three models trained for one epoch each, all on the same order: a comparison, not a forgotten epoch."""
    data, handed = numbers(101), []
    sampler: DistributedSampler[Any] = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    for _trial in range(3):
        sampler.set_epoch(0)
        handed.append(Trainer().epoch(loader))
    return handed


class Part(Sampler[int]):
    """A rank's piece of the data, cut for `pieces` ranks."""

    def __init__(self, length: int, rank: int, pieces: int, *, shuffles: bool = False) -> None:
        self.length, self.rank, self.pieces, self.shuffles = length, rank, pieces, shuffles
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        each = self.length // self.pieces
        order = list(range(self.length))
        if self.shuffles:
            random.Random(self.epoch).shuffle(order)
        return iter(order[self.rank * each : (self.rank + 1) * each])


def leaving_a_hole(rank: int, world_size: int, *, pieces: int = 3, shuffles: bool = False) -> Handed:
    data, trainer, handed = numbers(99), Trainer(), []
    sampler = Part(99, rank, pieces, shuffles=shuffles)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        handed.append(trainer.epoch(DataLoader(data, batch_size=3, sampler=sampler)))
    return handed


def contradicting(rank: int, world_size: int) -> Handed:
    data = numbers(80)
    sampler: DistributedSampler[Any] = DistributedSampler(data)
    loader = DataLoader(data, batch_size=4, sampler=sampler, shuffle=True)
    return [Trainer().epoch(loader)]


def in_order(rank: int, world_size: int, *, swapped: bool = False) -> Handed:
    data, trainer, handed = numbers(80), Trainer(), []
    sampler: DistributedSampler[Any] = DistributedSampler(data, shuffle=False)
    test = DataLoader(numbers(64), batch_size=32, sampler=DistributedSampler(numbers(64), shuffle=True))
    for _epoch in range(2):
        handed.append(trainer.epoch(DataLoader(data, batch_size=4, sampler=sampler)))
        if swapped:
            trainer.test(test)
    return handed


class Noise:
    """A transform with a generator of its own."""

    def __init__(self) -> None:
        self.state = np.random.RandomState(0)

    def __call__(self) -> float:
        return float(self.state.normal())


class Augmented(Numbers):
    """Draws from NumPy or torch, or from a generator of its own."""

    def __init__(self, length: int, source: str) -> None:
        super().__init__(length)
        self.source = source
        self.rng = np.random.default_rng(0)
        self.transforms = [Noise()]

    def __getitem__(self, index: int) -> torch.Tensor:
        noise = {
            "numpy": np.random.random,
            "own": self.rng.random,
            "transform": self.transforms[0],
            "torch": lambda: float(torch.rand(())),
        }[self.source]
        return super().__getitem__(index) + 0 * noise()


def _seeded_alike(worker: int) -> None:
    np.random.seed(0)


def _seeded_by_torch(worker: int) -> None:
    info = get_worker_info()
    assert info is not None
    info.dataset.rng = np.random.default_rng(info.seed)  # type: ignore[attr-defined]


def augmented(rank: int, world_size: int, *, source: str, workers: int = 2, seed_workers: str = "",
              seed: int | None = None, how: str = "fork", persistent: bool = False) -> Handed:  # fmt: skip
    torch.manual_seed(rank if seed is None else seed)
    data, trainer, handed = Augmented(64, source), Trainer(), []
    sampler: DistributedSampler[Any] = DistributedSampler(data)
    seeding = {"": None, "alike": _seeded_alike, "torch": _seeded_by_torch}[seed_workers]
    for epoch in range(2):
        sampler.set_epoch(epoch)
        loader = DataLoader(
            data,
            batch_size=4,
            sampler=sampler,
            num_workers=workers,
            worker_init_fn=seeding,
            multiprocessing_context=how if workers else None,
            persistent_workers=persistent,
        )
        handed.append(trainer.epoch(loader))
    return handed


# --- healthy --------------------------------------------------------------------------------------------------------------


def ordinary(rank: int, world_size: int, *, length: int = 101, workers: int = 0, drop_last: bool = False,
             sampler_drops: bool = False, batch_size: int = 8) -> Handed:  # fmt: skip
    data, test = numbers(length), numbers(40)
    sampler: DistributedSampler[Any] = DistributedSampler(data, drop_last=sampler_drops)
    loader = DataLoader(data, batch_size=batch_size, sampler=sampler, num_workers=workers, drop_last=drop_last)
    sampler_of_test: DistributedSampler[Any] = DistributedSampler(test, shuffle=False)
    testing = DataLoader(test, batch_size=16, sampler=sampler_of_test)
    trainer, handed = Trainer(), []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        handed.append(trainer.epoch(loader))
        trainer.test(testing)
    return handed


def without_room(rank: int, world_size: int) -> Handed:
    """No file may grow beyond 8 KiB any more, as on a disk that has just become full."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, limits[1]))
    try:
        return ordinary(rank, world_size, length=120_000, batch_size=600)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def made_anew(rank: int, world_size: int, *, workers: int = 0) -> Handed:
    data, trainer, handed = numbers(101), Trainer(), []
    for epoch in range(3):
        sampler: DistributedSampler[Any] = DistributedSampler(data)
        sampler.set_epoch(epoch)
        loader = DataLoader(data, batch_size=8, sampler=sampler, num_workers=workers)
        handed.append(trainer.epoch(loader))
    return handed


def seeded_by_hand(rank: int, world_size: int) -> Handed:
    data, trainer, handed = numbers(101), Trainer(), []
    for epoch in range(3):
        loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data, seed=100 + epoch))
        handed.append(trainer.epoch(loader))
    return handed


def weighted(rank: int, world_size: int) -> Handed:
    torch.manual_seed(rank)
    sampler = WeightedRandomSampler([1.0] * 100, num_samples=60, replacement=True)
    loader = DataLoader(numbers(100), batch_size=8, sampler=sampler)
    trainer = Trainer()
    return [trainer.epoch(loader) for _epoch in range(2)]


class ShardedBatches(Sampler[list[int]]):
    """Batches for one rank, as detection frameworks make them: an endless stream, dealt out in turns."""

    def __init__(self, length: int, rank: int, world_size: int, *, endless: bool) -> None:
        self.length, self.rank, self.world_size, self.endless = length, rank, world_size, endless

    def __iter__(self) -> Iterator[list[int]]:
        generator = torch.Generator().manual_seed(0)
        for _round in itertools.count() if self.endless else range(1):
            order = torch.randperm(self.length, generator=generator).tolist()[self.rank :: self.world_size]
            yield from (order[at : at + 4] for at in range(0, len(order), 4))


def own_batches(rank: int, world_size: int, *, endless: bool = False) -> Handed:
    sampler = ShardedBatches(100, rank, world_size, endless=endless)
    return [Trainer().epoch(DataLoader(numbers(100), batch_sampler=sampler), 60)]


class Neighbours(Sampler[list[int]]):
    """Batches of neighbours, in an order that the epoch decides; or always in the order of the data."""

    def __init__(self, length: int, rank: int, world_size: int, *, mixes: bool) -> None:
        self.length, self.mine, self.of, self.mixes, self.epoch = length, rank, world_size, mixes, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[list[int]]:
        order = torch.arange(self.length)
        if self.mixes:
            order = torch.randperm(self.length, generator=torch.Generator().manual_seed(self.epoch))
        yield from (batch.tolist() for batch in order[self.mine :: self.of].split(4))


def in_neighbourhoods(rank: int, world_size: int, *, told: bool, mixes: bool = True) -> Handed:
    """set_epoch goes to the loader's sampler, which is not the one that draws."""
    loader, trainer, handed = (
        DataLoader(numbers(96), batch_sampler=Neighbours(96, rank, world_size, mixes=mixes)),
        Trainer(),
        [],
    )
    for epoch in range(3):
        receiver = loader.batch_sampler if told else loader.sampler
        if hasattr(receiver, "set_epoch"):
            receiver.set_epoch(epoch)
        handed.append(trainer.epoch(loader))
    return handed


def disjoint_subsets(rank: int, world_size: int) -> Handed:
    data = numbers(100)
    mine = Subset(data, list(range(rank, 100, world_size)))
    trainer, loader = Trainer(), DataLoader(mine, batch_size=4, shuffle=True)
    return [trainer.epoch(loader) for _epoch in range(2)]


def own_data(rank: int, world_size: int) -> Handed:
    """Each rank has cut its files to its own share: equal indices mean different samples."""
    data = TensorDataset(torch.arange(100.0)[rank::world_size].reshape(-1, 1))
    trainer, handed = Trainer(), []
    for _epoch in range(2):
        handed.append(
            [number for (batch,) in DataLoader(data, batch_size=5, shuffle=True) for number in trainer.step(batch)]
        )
    return handed


def zipped(rank: int, world_size: int) -> Handed:
    data = numbers(64)
    samplers: list[DistributedSampler[Any]] = [DistributedSampler(data, seed=seed) for seed in (0, 0)]
    loaders = [DataLoader(data, batch_size=4, sampler=sampler) for sampler in samplers]
    trainer, handed = Trainer(), []
    for epoch in range(2):
        for sampler in samplers:
            sampler.set_epoch(epoch)
        for one, other in zip(*loaders, strict=True):
            handed += [*trainer.step(one), *trainer.step(other)]
    return [handed]


def tensor_parallel(rank: int, world_size: int) -> Handed:
    """Both ranks hold a part of one model: they have to read the same samples."""
    model, loader, handed = nn.Linear(1, 4), DataLoader(numbers(64), batch_size=8, shuffle=True), []
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    for batch in loader:
        optimizer.zero_grad()
        part = model(batch)
        whole = part.detach().clone()
        dist.all_reduce(whole)
        (part.sum() + whole.sum()).backward()
        optimizer.step()
        handed += [int(number) for number in batch[:, 0]]
    return [handed]


class _Exchanged(torch.autograd.Function):
    """Each rank's half of every rank's rows, and the gradients back."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        received = torch.empty_like(rows)
        dist.all_to_all_single(received, rows.contiguous())
        return received

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        sent = torch.empty_like(gradients[0])
        dist.all_to_all_single(sent, gradients[0].contiguous())
        return sent


def tables_on_each_rank(rank: int, world_size: int) -> Handed:
    """Each rank looks the whole batch up in its own table; the layer above, which is replicated, gets a half of the samples."""
    table, handed = nn.Embedding(64 + rank, 4), list[int]()
    top = nn.parallel.DistributedDataParallel(nn.Linear(8, 1))
    loader = DataLoader(numbers(64), batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(0))
    optimizer = torch.optim.SGD([*table.parameters(), *top.parameters()], lr=1e-3)
    mine = (slice(0, 4), slice(4, 8))[rank]
    for batch in loader:
        optimizer.zero_grad()
        rows = _Exchanged.apply(table(batch[:, 0].long()))  # type: ignore[no-untyped-call]
        (top(torch.cat(rows.chunk(2), 1)) - batch[mine]).square().mean().backward()
        optimizer.step()
        handed += [int(number) for number in batch[:, 0]]
    return [handed]


def pipelined(rank: int, world_size: int) -> Handed:
    """Each rank holds one stage and reads the same batches: the first the inputs, the last the targets."""
    stage, loader, handed = nn.Linear(1, 1), DataLoader(numbers(64), batch_size=8, shuffle=True), []
    optimizer = torch.optim.SGD(stage.parameters(), lr=1e-9)
    for batch in loader:
        optimizer.zero_grad()
        between = torch.zeros_like(batch)
        if rank == 0:
            output = stage(batch)
            dist.send(output.detach(), 1)
            dist.recv(between, 1)
            output.backward(between)
        else:
            dist.recv(between, 0)
            between.requires_grad_()
            (stage(between) - batch).square().mean().backward()
            assert between.grad is not None
            dist.send(between.grad, 0)
        optimizer.step()
        handed += [int(number) for number in batch[:, 0]]
    return [handed]


def on_a_mesh(rank: int, world_size: int) -> Handed:
    """Two replicas of a model that two ranks share each: data are divided along one dimension, and equal along the other."""
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    data, handed = numbers(101), []
    sampler: DistributedSampler[Any] = DistributedSampler(
        data, num_replicas=mesh["dp"].size(), rank=mesh["dp"].get_local_rank()
    )
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    model = nn.parallel.DistributedDataParallel(nn.Linear(1, 1), process_group=mesh["dp"].get_group())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        drawn = []
        for batch in loader:
            optimizer.zero_grad()
            part = model(batch)
            whole = part.detach().clone()
            dist.all_reduce(whole, group=mesh["tp"].get_group())
            (part.sum() + whole.sum()).backward()
            optimizer.step()
            drawn += [int(number) for number in batch[:, 0]]
        handed.append(drawn)
    return handed


def interleaved(rank: int, world_size: int) -> Handed:
    """Two iterators of one loader at once, as for pairs of batches: their orders are the same, and nothing is forgotten."""
    data, trainer, handed = numbers(64), Trainer(), []
    sampler: DistributedSampler[Any] = DistributedSampler(data)
    loader = DataLoader(data, batch_size=4, sampler=sampler)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        one, other = [], []
        for left, right in zip(iter(loader), iter(loader), strict=True):
            one += trainer.step(left)
            other += trainer.step(right)
        handed += [one, other]
    return handed


class Curriculum(Sampler[int]):
    """The easy samples first; each epoch more of them, in an order of its own, divided among the ranks."""

    def __init__(self, length: int, rank: int, world_size: int) -> None:
        self.length, self.rank, self.world_size, self.epoch = length, rank, world_size, 0

    def __iter__(self) -> Iterator[int]:
        self.epoch += 1
        order = list(range(self.length * min(self.epoch, 3) // 4 // self.world_size * self.world_size))
        random.Random(self.epoch).shuffle(order)
        return iter(order[self.rank :: self.world_size])


def curriculum(rank: int, world_size: int) -> Handed:
    trainer, loader = Trainer(), DataLoader(numbers(160), batch_size=8, sampler=Curriculum(160, rank, world_size))
    return [trainer.epoch(loader) for _epoch in range(3)]


class Buckets(Sampler[list[int]]):
    """Batches of samples of like length, of as many samples as fit; dealt out in turns."""

    def __init__(self, length: int, rank: int, world_size: int) -> None:
        self.length, self.rank, self.world_size, self.epoch = length, rank, world_size, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[list[int]]:
        order, batches = list(range(self.length)), []
        while order:
            size = 2 + len(batches) % 5
            batches.append(order[:size])
            order = order[size:]
        random.Random(self.epoch).shuffle(batches)
        whole = len(batches) // self.world_size * self.world_size
        return iter(batches[:whole][self.rank :: self.world_size])


def bucketed(rank: int, world_size: int) -> Handed:
    data: Dataset[torch.Tensor] = ConcatDataset([Numbers(50), Shifted(50, 50)])
    sampler, trainer, handed = Buckets(100, rank, world_size), Trainer(), []
    loader = DataLoader(data, batch_sampler=sampler)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        handed.append(trainer.epoch(loader))
    return handed


class Shifted(Numbers):
    def __init__(self, length: int, first: int) -> None:
        super().__init__(length)
        self.first = first

    def __getitem__(self, index: int) -> torch.Tensor:
        return super().__getitem__(self.first + index)


def tested_everywhere(rank: int, world_size: int) -> Handed:
    """Every rank evaluates the same few samples: nothing to be added up afterwards."""
    data, trainer, handed = numbers(64), Trainer(), []
    sampler: DistributedSampler[Any] = DistributedSampler(data)
    loader, testing = DataLoader(data, batch_size=4, sampler=sampler), DataLoader(numbers(12), batch_size=4)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        handed.append(trainer.epoch(loader))
        trainer.test(testing)
    return handed


def by_lightning(rank: int, world_size: int) -> Handed:
    """Lightning puts its own samplers into ordinary loaders, tells them the epoch, and counts batches itself."""
    import lightning
    from lightning.fabric.plugins.environments import LightningEnvironment

    handed: Handed = []

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(1, 1)

        def on_train_epoch_start(self) -> None:
            handed.append([])

        def training_step(self, batch: torch.Tensor, number: int) -> torch.Tensor:
            handed[-1].extend(int(value) for value in batch[:, 0])
            return self.net(batch).sum()

        def validation_step(self, batch: torch.Tensor, number: int) -> None:
            self.net(batch)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=1e-9)

    class Here(LightningEnvironment):
        """These ranks: Lightning starts none of its own."""

        creates_processes_externally = True  # type: ignore[assignment]

        def world_size(self) -> int:
            return world_size

        def global_rank(self) -> int:
            return rank

        def local_rank(self) -> int:
            return rank

    silent = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    trainer = lightning.Trainer(
        accelerator="cpu", devices=world_size, strategy="ddp", max_epochs=2, plugins=[Here()], **silent
    )
    loaders = DataLoader(numbers(101), batch_size=8, shuffle=True), DataLoader(numbers(32), batch_size=8)
    trainer.fit(Module(), *loaders)
    return handed


class Stream(IterableDataset[torch.Tensor]):
    def __init__(self, rank: int, world_size: int) -> None:
        self.rank, self.world_size = rank, world_size

    def __iter__(self) -> Iterator[torch.Tensor]:
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        numbers = range(self.rank + worker * self.world_size, 48, self.world_size * workers)
        return (torch.tensor([float(number)]) for number in numbers)


class ShuffledShares(IterableDataset[torch.Tensor]):
    """A rank's share of an order that every rank shuffles by one seed, or (`own`) by a seed of its own."""

    def __init__(self, rank: int, world_size: int, own: bool) -> None:
        self.rank, self.world_size, self.order_seed = rank, world_size, 5 + (rank if own else 0)

    def __iter__(self) -> Iterator[torch.Tensor]:
        order = list(range(80))
        random.Random(self.order_seed).shuffle(order)
        return (torch.tensor([float(number)]) for number in order[self.rank :: self.world_size])


def shuffled_shares(rank: int, world_size: int, *, own: bool = True) -> Handed:
    return [Trainer().epoch(DataLoader(ShuffledShares(rank, world_size, own), batch_size=5))]


class BufferedStream(IterableDataset[torch.Tensor]):
    """Files that are dealt out to workers; each rank shuffles in its own way."""

    def __init__(self, rank: int, world_size: int, endless: bool) -> None:
        self.rank, self.world_size, self.endless = rank, world_size, endless
        self.own = random.Random(11 + rank)

    def files(self, worker: int, workers: int) -> list[int]:
        return list(range(12))[worker::workers]

    def __iter__(self) -> Iterator[torch.Tensor]:
        info = get_worker_info()
        files = self.files(*(info.id, info.num_workers) if info else (0, 1))
        rows = [file * 40 + row for file in files for row in range(40)]
        for _ in itertools.count() if self.endless else (0,):
            self.own.shuffle(rows)
            yield from (torch.tensor([float(row)]) for row in rows)


class BufferedShares(BufferedStream):
    def files(self, worker: int, workers: int) -> list[int]:
        return list(range(12))[self.rank * workers + worker :: self.world_size * workers]


class WorkersOrders(IterableDataset[torch.Tensor]):
    """A rank's share, which each worker reads whole (or only its part of it, `times` over), in an order of its own."""

    def __init__(self, rank: int, world_size: int, whole: bool, times: int) -> None:
        self.rows = list(range(480))[rank::world_size]
        self.whole, self.times = whole, times

    def __iter__(self) -> Iterator[torch.Tensor]:
        info = get_worker_info()
        assert info is not None
        own = random.Random(info.id)
        for _ in range(self.times):
            rows = list(self.rows if self.whole else self.rows[info.id :: info.num_workers])
            own.shuffle(rows)
            yield from (torch.tensor([float(row)]) for row in rows)


def orders_of_workers(rank: int, world_size: int, *, whole: bool = True, times: int = 1, limit: int = 0) -> Handed:
    loader = DataLoader(WorkersOrders(rank, world_size, whole, times), batch_size=10, num_workers=2)
    return [Trainer().epoch(loader, limit or None)]


class OwnOrder(IterableDataset[torch.Tensor]):
    """Without end, in an order of its own, and told of no other rank: that may be meant."""

    def __init__(self, seed: int) -> None:
        self.own = random.Random(seed)

    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            yield from (torch.tensor([float(row)]) for row in self.own.sample(range(480), 480))


def buffered_stream(
    rank: int, world_size: int, *, by_rank: bool = False, workers: int = 0, endless: bool = False
) -> Handed:
    data = (BufferedShares if by_rank else BufferedStream)(rank, world_size, endless)
    loader = DataLoader(data, batch_size=20, num_workers=workers)
    trainer = Trainer()
    return [trainer.epoch(loader, 40 if endless else None) for _epoch in range(1 if endless else 2)]


def own_order_without_end(rank: int, world_size: int) -> Handed:
    return [Trainer().epoch(DataLoader(OwnOrder(11 + rank), batch_size=20), 40)]


class ShuffledFiles(IterableDataset[torch.Tensor]):
    """Twelve files of `rows` rows, dealt out whole; a rank reads the rows of each of its files in an order of its own."""

    def __init__(self, rank: int, world_size: int, rows: int, file_seed: int, repeats: bool) -> None:
        self.rank, self.world_size, self.rows, self.repeats = rank, world_size, rows, repeats
        self.files = random.Random(file_seed)

    def __iter__(self) -> Iterator[torch.Tensor]:
        files, own = list(range(12)), random.Random(1009 * self.rank)
        self.files.shuffle(files)
        for file in files[self.rank :: self.world_size]:
            rows = range(file * self.rows, (file + 1) * self.rows)
            for row in own.choices(rows, k=self.rows) if self.repeats else own.sample(rows, self.rows):
                yield torch.tensor([float(row)])


def shuffled_files(rank: int, world_size: int, *, own: bool, rows: int = 40, repeats: bool = False) -> Handed:
    """`own`: each rank shuffles the files its own way before it takes its share. `repeats`: it draws rows with replacement."""
    data = ShuffledFiles(rank, world_size, rows, rank if own else 0, repeats)
    return [Trainer().epoch(DataLoader(data, batch_size=20)) for _epoch in range(2)]


class OwnRows(IterableDataset[torch.Tensor]):
    """Those of the process that reads."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        rows = list(range(80))
        return (torch.tensor([float(row)]) for row in rows[dist.get_rank() :: dist.get_world_size()])


class AllRows(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        return (torch.tensor([float(row)]) for row in range(80))


def read_by_one(rank: int, world_size: int, *, own: bool, by_all: bool = False) -> Handed:
    """Rank 0 reads and sends every rank its part of a batch; `by_all`: each reads for itself."""
    loader = DataLoader(OwnRows() if own else AllRows(), batch_size=10)
    if by_all:
        return [Trainer().epoch(loader)]
    batches = iter(loader) if rank == 0 else None
    trainer, handed = Trainer(), list[int]()
    for _ in range(4):
        parts = torch.stack(next(batches).chunk(world_size)) if batches is not None else torch.zeros(world_size, 5, 1)
        dist.broadcast(parts, 0)
        handed += trainer.step(parts[rank])
    return [handed]


class Copies(IterableDataset[torch.Tensor]):
    """Looks at neither rank nor worker, or at the rank only."""

    def __init__(self, first: int) -> None:
        self.first = first

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (torch.tensor([float(self.first + number)]) for number in range(60))


class SeededStream(IterableDataset[torch.Tensor]):
    """Without end, shuffled with a seed of its own in each worker, or in some of them only."""

    def __init__(self, rank: int, how: str) -> None:
        self.rank, self.how = rank, how

    def __iter__(self) -> Iterator[torch.Tensor]:
        info = get_worker_info()
        worker = info.id if info else 0
        seed = 42 + worker + self.rank  # the same sums
        if self.how == "own":
            seed = 42 + worker + 1000 * self.rank
        rng = random.Random(seed)
        while True:
            order = list(range(200))
            rng.shuffle(order)
            for number in order:
                yield torch.tensor([float(number)])


def seeded_streams(rank: int, world_size: int, *, how: str, replicas: bool = True) -> Handed:
    loader = DataLoader(SeededStream(rank, how), batch_size=4, num_workers=2)
    return [Trainer(replicas=replicas).epoch(loader, limit=40)]


def copied_by_workers(rank: int, world_size: int) -> Handed:
    return [Trainer().epoch(DataLoader(Copies(1000 * rank), batch_size=5, num_workers=2))]


def copied_by_ranks(rank: int, world_size: int, *, workers: int = 0) -> Handed:
    return [Trainer().epoch(DataLoader(Copies(0), batch_size=5, num_workers=workers, persistent_workers=workers > 0))]


def streaming(rank: int, world_size: int, *, workers: int = 0) -> Handed:
    trainer, loader = Trainer(), DataLoader(Stream(rank, world_size), batch_size=4, num_workers=workers)
    return [trainer.epoch(loader) for _epoch in range(2)]


def accelerated(rank: int, world_size: int, *, workers: int = 0, split: bool = False, leaves: bool = False) -> Handed:
    """accelerate's loaders: dealt out in turns, filled up at the end, one batch kept back, evaluated with gradients on."""
    from accelerate import Accelerator, DataLoaderConfiguration, skip_first_batches

    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="1", LOCAL_WORLD_SIZE=str(world_size))
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(split_batches=split))
    loader = DataLoader(numbers(101), batch_size=8, shuffle=True, num_workers=workers)
    testing = DataLoader(numbers(21), batch_size=4)
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    prepared, stepping, loader, testing = accelerator.prepare(model, optimizer, loader, testing)
    trainer, handed = Trainer(), []
    trainer.model, trainer.optimizer = prepared, stepping
    for epoch in range(2):
        prepared.train()
        loader.set_epoch(epoch)
        if leaves and epoch == 1:
            handed.append(trainer.epoch(loader, 3))
            handed.append(trainer.epoch(skip_first_batches(loader, 3)))
        else:
            handed.append(trainer.epoch(loader))
        prepared.eval()
        for batch in testing:
            with torch.no_grad():
                prepared(batch)
    return handed


def evaluated(rank: int, world_size: int, *, measure: Callable[[Any, Any, Any], int]) -> Handed:
    """An evaluation of 21 samples by accelerate, which fills its batches of four up to 24."""
    from accelerate import Accelerator

    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="1", LOCAL_WORLD_SIZE=str(world_size))
    accelerator = Accelerator(cpu=True)
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    loader, testing = DataLoader(numbers(64), batch_size=8, shuffle=True), DataLoader(numbers(21), batch_size=4)
    prepared, stepping, loader, testing = accelerator.prepare(model, optimizer, loader, testing)
    trainer = Trainer()
    trainer.model, trainer.optimizer = prepared, stepping
    handed = trainer.epoch(loader)
    prepared.eval()
    return [handed, [measure(accelerator, prepared, testing)]]


@torch.no_grad()
def counts_padding(accelerator: Any, model: Any, testing: Any) -> int:
    count = 0
    for batch in testing:
        count += len(accelerator.gather(model(batch)))
    return count


@torch.no_grad()
def leaves_padding_out(accelerator: Any, model: Any, testing: Any) -> int:
    count = 0
    for batch in testing:
        count += len(accelerator.gather_for_metrics(model(batch)))
    return count


def stateful(rank: int, world_size: int, *, workers: int = 0, restores: bool = True) -> Handed:
    """torchdata's loader, left in its second epoch and restored into a new one, as after a restart."""
    from torchdata.stateful_dataloader import StatefulDataLoader  # type: ignore[import-not-found]
    from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler  # type: ignore[import-not-found]

    data, trainer, handed = numbers(101), Trainer(), []

    def made() -> tuple[Any, Any]:
        sampler = StatefulDistributedSampler(data, num_replicas=world_size, rank=rank)
        return sampler, StatefulDataLoader(data, batch_size=8, sampler=sampler, num_workers=workers)

    sampler, loader = made()
    for epoch in range(3):
        sampler.set_epoch(epoch)
        if epoch == 1:
            handed.append(trainer.epoch(loader, 3))
            left, (sampler, loader) = loader.state_dict(), made()
            sampler.set_epoch(epoch)
            if restores:
                loader.load_state_dict(left)
        handed.append(trainer.epoch(loader))
    return handed


class ShuffledStream(IterableDataset[torch.Tensor]):
    """Shuffles by seed and epoch, as Hugging Face's iterable data sets do, and shards by rank and worker."""

    def __init__(self, rank: int, world_size: int, *, shuffle: bool | None = True) -> None:
        self.rank, self.world_size, self.seed, self.epoch = rank, world_size, 0, 0
        if shuffle is not None:
            self.shuffle = shuffle
        self.order: list[int] = []

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[torch.Tensor]:
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        order = list(range(96))
        if getattr(self, "shuffle", False):
            random.Random(self.seed + self.epoch).shuffle(order)
        order = order[self.rank + worker * self.world_size :: self.world_size * workers]
        return (torch.tensor([float(number)]) for number in order)


class CountedStream(ShuffledStream):
    """Says nothing of how it shuffles."""

    def __init__(self, rank: int, world_size: int) -> None:
        super().__init__(rank, world_size, shuffle=None)
        del self.seed

    def __iter__(self) -> Iterator[torch.Tensor]:
        order, info = list(range(96)), get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        random.Random(self.epoch).shuffle(order)
        return (
            torch.tensor([float(n)]) for n in order[self.rank + worker * self.world_size :: self.world_size * workers]
        )


class DrawnStream(CountedStream):
    """Draws its order in a method of its own. `option`: it asks an option of its own first, and yields one order."""

    def __init__(self, rank: int, world_size: int, *, option: bool = False) -> None:
        super().__init__(rank, world_size)
        self.option = option

    def drawn(self) -> list[int]:
        return random.Random(0 if self.option else int(self.epoch)).sample(range(96), 96)

    def __iter__(self) -> Iterator[torch.Tensor]:
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        share = self.drawn()[self.rank + worker * self.world_size :: self.world_size * workers]
        return (torch.tensor([float(number)]) for number in share)


class PlainDrawnStream(DrawnStream):
    def drawn(self) -> list[int]:
        return random.Random(int(self.epoch)).sample(range(96), 96)


class SharedEpochStream(PlainDrawnStream):
    """The epoch lies where its workers see it."""

    def __init__(self, rank: int, world_size: int) -> None:
        super().__init__(rank, world_size)
        self.epoch: Any = torch.zeros((), dtype=torch.int64).share_memory_()

    def set_epoch(self, epoch: int) -> None:
        self.epoch.fill_(epoch)


class ToldInVain(ShuffledStream):
    """Has a set_epoch because whoever trains calls one, and one order."""

    def __init__(self, rank: int, world_size: int) -> None:
        super().__init__(rank, world_size, shuffle=None)
        del self.seed

    def __iter__(self) -> Iterator[torch.Tensor]:
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        share = random.Random(3).sample(range(96), 96)
        return (
            torch.tensor([float(n)]) for n in share[self.rank + worker * self.world_size :: self.world_size * workers]
        )


class Brightened(Dataset[torch.Tensor]):
    """Map-style data whose samples change with the epoch."""

    def __init__(self, length: int, *, shared: bool = False) -> None:
        self.length = length
        self.epoch: Any = torch.zeros((), dtype=torch.int64).share_memory_() if shared else 0

    def __len__(self) -> int:
        return self.length

    def set_epoch(self, epoch: int) -> None:
        if isinstance(self.epoch, torch.Tensor):
            self.epoch.fill_(epoch)
        else:
            self.epoch = epoch

    def strength(self) -> float:
        return 1 + float(self.epoch)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([float(index)]) * self.strength()


def brightened(
    rank: int, world_size: int, *, shared: bool = False, persistent: bool = True, told: bool = True
) -> Handed:
    data, trainer, handed = Brightened(64, shared=shared), Trainer(), []
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=4, sampler=sampler, num_workers=2, persistent_workers=persistent)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        if told:
            data.set_epoch(epoch)
        handed.append(trainer.epoch(loader))
    return handed


def drawn_stream(
    rank: int, world_size: int, *, kind: type = PlainDrawnStream, workers: int = 2, **about: bool
) -> Handed:
    persistent = about.pop("persistent", True)
    data, trainer = kind(rank, world_size, **about), Trainer()
    loader, handed = DataLoader(data, batch_size=3, num_workers=workers, persistent_workers=persistent), []
    for epoch in range(3):
        data.set_epoch(epoch)
        handed.append(trainer.epoch(loader))
    return handed


class Order:
    """No data itself, and no sampler of torch's. `fixed`: the same order whatever it is told."""

    def __init__(self, *, fixed: bool = False) -> None:
        self.epoch, self.fixed = 0, fixed

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def drawn(self) -> list[int]:
        return random.Random(self.epoch).sample(range(96), 96)


class FixedOrder(Order):
    def drawn(self) -> list[int]:
        return random.Random(3).sample(range(96), 96)


class OrderedStream(IterableDataset[torch.Tensor]):
    """An order of somebody's own lies in the data."""

    def __init__(self, rank: int, world_size: int, order: Order) -> None:
        self.rank, self.world_size, self.order = rank, world_size, order

    def __iter__(self) -> Iterator[torch.Tensor]:
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        share = self.order.drawn()[self.rank + worker * self.world_size :: self.world_size * workers]
        return (torch.tensor([float(number)]) for number in share)


class TellingStream(OrderedStream):
    def set_epoch(self, epoch: int) -> None:
        self.order.set_epoch(epoch)


class SampledStream(IterableDataset[torch.Tensor]):
    """A sampler of torch's lies in the data, of which each worker takes its part."""

    def __init__(self, rank: int, world_size: int) -> None:
        self.sampler = DistributedSampler(range(96), world_size, rank)  # type: ignore[arg-type, var-annotated]

    def __iter__(self) -> Iterator[torch.Tensor]:
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        return (torch.tensor([float(number)]) for number in list(self.sampler)[worker::workers])


class Strength:
    def __init__(self) -> None:
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __call__(self, value: torch.Tensor) -> torch.Tensor:
        return value * (1 + float(self.epoch))


class Strengthened(Dataset[torch.Tensor]):
    """Map-style data that hold what changes with the epoch, and the sampler that the loader draws from."""

    def __init__(self, rank: int, world_size: int) -> None:
        self.augment = Strength()
        self.sampler = DistributedSampler(range(64), world_size, rank)  # type: ignore[arg-type, var-annotated]

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.augment(torch.tensor([float(index)]))


def told_inside(
    rank: int, world_size: int, *, what: str, fixed: bool = False, persistent: bool = True, tells: bool = True
) -> Handed:
    """What is told the epoch lies in the data: an `order`, told by itself or by its `stream`, torch's `sampler`, or what changes
    the samples (`augment`)."""
    order, trainer, handed = (FixedOrder if fixed else Order)(), Trainer(), []
    kinds = {"order": OrderedStream, "stream": TellingStream}
    data: Any = (
        kinds[what](rank, world_size, order)
        if what in kinds
        else (SampledStream if what == "sampler" else Strengthened)(rank, world_size)
    )
    sampler = data.sampler if what == "augment" else None
    loader = DataLoader(data, batch_size=3, sampler=sampler, num_workers=2, persistent_workers=persistent)
    for epoch in range(3):
        if what == "augment":
            data.sampler.set_epoch(epoch)
        if tells:
            (data if what == "stream" else getattr(data, what)).set_epoch(epoch)
        handed.append(trainer.epoch(loader))
    return handed


def counted_stream(rank: int, world_size: int, *, persistent: bool = True) -> Handed:
    data, trainer = CountedStream(rank, world_size), Trainer()
    loader, handed = DataLoader(data, batch_size=3, num_workers=2, persistent_workers=persistent), []
    for epoch in range(3):
        data.set_epoch(epoch)
        handed.append(trainer.epoch(loader))
    return handed


class Wrapped(IterableDataset[torch.Tensor]):
    """Somebody's wrapper around iterable data."""

    def __init__(self, dataset: IterableDataset[torch.Tensor]) -> None:
        self.dataset = dataset

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(self.dataset)


def shuffled_stream(rank: int, world_size: int, *, told: str = "", shuffle: bool | None = True, workers: int = 0,
                    wrapped: bool = False, own_seeds: bool = False, batch_size: int = 3) -> Handed:  # fmt: skip
    data, trainer, handed = ShuffledStream(rank, world_size, shuffle=shuffle), Trainer(), []
    if own_seeds:
        data.seed = 1009 * rank
    loader = DataLoader(
        Wrapped(data) if wrapped else data, batch_size=batch_size, num_workers=workers, persistent_workers=workers > 0
    )
    for epoch in range(3):
        if told:
            data.set_epoch(epoch if told == "epoch" else 7)
        handed.append(trainer.epoch(loader))
    return handed


def by_datasets(rank: int, world_size: int, *, told: bool = True, split: bool = True, workers: int = 0) -> Handed:
    """Hugging Face's own stream: shuffled by epoch, in shards, dealt out by rank and worker."""
    import datasets
    from datasets.distributed import split_dataset_by_node

    rows = datasets.Dataset.from_dict({"number": [[float(number)] for number in range(128)]})
    data = rows.with_format("torch").to_iterable_dataset(num_shards=4).shuffle(seed=1, buffer_size=16)
    if split:
        data = split_dataset_by_node(data, rank=rank, world_size=world_size)
    loader, trainer, handed = DataLoader(data, batch_size=4, num_workers=workers), Trainer(), []
    for epoch in range(2):
        if told:
            data.set_epoch(epoch)
        handed.append(trainer.epoch(batch["number"] for batch in loader))
    return handed


def cut_by_datasets(rank: int, world_size: int, *, own: bool, times: int | None = 1, limit: int = 40) -> Handed:
    """The same, which takes every so manyth row of three shards, and leaves each pass before its end. `own`: shuffled by rank."""
    import datasets

    rows = datasets.Dataset.from_dict({"number": [[float(number)] for number in range(180)]})
    data = rows.with_format("torch").to_iterable_dataset(num_shards=3).repeat(times)
    loader, trainer = DataLoader(_dealt(data, 7 + rank if own else 7, rank, world_size), batch_size=2), Trainer()
    return [trainer.epoch((batch["number"] for batch in loader), limit)]


def _dealt(stream: Any, seed: int, rank: int, world_size: int) -> Any:
    from datasets.distributed import split_dataset_by_node

    stream = stream.shuffle(seed=seed, buffer_size=60)
    return split_dataset_by_node(stream, rank=rank, world_size=world_size)


def shuffled_by_datasets(rank: int, world_size: int, *, own: bool) -> Handed:
    """Shuffled once the shares are dealt, which datasets do before."""
    import datasets

    rows = datasets.Dataset.from_dict({"number": [[float(number)] for number in range(480)]})
    data = _dealt_first(
        rows.with_format("torch").to_iterable_dataset(num_shards=3), 7 + rank if own else 7, rank, world_size
    )
    return [Trainer().epoch((batch["number"] for batch in DataLoader(data, batch_size=4)), 50)]


def _dealt_first(stream: Any, seed: int, rank: int, world_size: int) -> Any:
    from datasets.distributed import split_dataset_by_node

    dealt = split_dataset_by_node(stream, rank=rank, world_size=world_size)
    return dealt.shuffle(seed=seed, buffer_size=60)


def restarted_search(rank: int, world_size: int) -> Handed:
    """A learning-rate finder that leaves after ten steps, then the training begins in the same order."""
    data = numbers(400)
    loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data))
    trainer = Trainer()
    return [trainer.epoch(loader, 10), trainer.epoch(loader)]


def peeking(rank: int, world_size: int) -> Handed:
    """Rank 0 looks at a batch first: its passes and those of rank 1 do not have the same numbers."""
    data = numbers(128)
    sampler: DistributedSampler[Any] = DistributedSampler(data)
    loader = DataLoader(data, batch_size=64, sampler=sampler)
    if rank == 0:
        next(iter(loader))
    trainer, handed = Trainer(), []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        handed.append(trainer.epoch(loader))
    return handed


def odd_indices(rank: int, world_size: int) -> Handed:
    """Keys instead of numbers, and batches that are tensors."""

    class ByName(Dataset[torch.Tensor]):
        def __getitem__(self, name: Any) -> torch.Tensor:
            return torch.tensor([float(name[1:])])

        def __len__(self) -> int:
            return 40

    names = [f"n{number}" for number in range(rank, 40, world_size)]
    trainer = Trainer()
    keyed = trainer.epoch(DataLoader(ByName(), sampler=names, batch_size=4))
    batches = torch.arange(rank, 40, world_size).reshape(-1, 4)
    tensors = trainer.epoch(DataLoader(Numbers(40), batch_sampler=list(batches)))
    return [keyed, tensors]


def unbatched(rank: int, world_size: int) -> Handed:
    data = numbers(32)
    sampler = BatchSampler(RandomSampler(data), batch_size=4, drop_last=False)
    loader = DataLoader(Gathering(data), sampler=sampler, batch_size=None)
    return [Trainer(replicas=False).epoch(loader)]


class Gathering(Dataset[torch.Tensor]):
    """Given a batch of indices, gives a batch."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def __getitem__(self, indices: Any) -> torch.Tensor:
        return torch.stack([self.data[index] for index in indices])

    def __len__(self) -> int:
        return len(self.data)
