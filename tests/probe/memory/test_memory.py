"""The stream of memory: what it counts is what is there, it keeps nothing alive, and it changes no result."""

from __future__ import annotations

import functools
import gc
import itertools
import queue
import weakref
from collections import deque
from typing import Any, ClassVar

import pytest
import torch
from jobs import memory as jobs
from torch import nn
from torch.utils.checkpoint import checkpoint

from distdoctor.diagnosis.memory.memory import Memory
from distdoctor.probe.memory.holders import HolderScan
from distdoctor.probe.memory.host_memory import children, host
from distdoctor.probe.memory.storages import Storages, categories
from distdoctor.probe.memory.stream import graphs, is_out_of_memory, looks_at_holders
from distdoctor.probe.variables import locals_of
from distdoctor.recording.trace.layout import HOOKS, MORE_RINGS, STREAMS, HolderFlag, plan


def test_all_streams_together_take_at_most_4_mib() -> None:
    assert "memory" in MORE_RINGS
    assert plan(STREAMS)[1] <= 4 << 20


def test_variables_are_looked_at_often_at_first_and_then_ever_more_rarely() -> None:
    looked_at = [step for step in range(200) if looks_at_holders(step)]

    assert looked_at == [3, 6, 9, 12, 18, 24, 36, 48, 60, 72, 84, 96, 120, 144, 168, 192]


def test_categories_count_each_storage_once() -> None:
    model = nn.Sequential(nn.Linear(10, 10), nn.BatchNorm1d(10), nn.Linear(10, 10))
    model[2].weight = model[0].weight  # tied
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(4, 10)).sum().backward()
    optimizer.step()
    found, _ = categories([optimizer], [model])

    numbers = 100 + 10 + 20 + 10
    assert found.parameters == found.gradients == 4 * numbers
    assert found.state == 2 * 4 * numbers + 4 * 5  # two moments of each, and a step of each of the five
    assert found.buffers == 4 * 20 + 8


def test_the_graph_counts_what_it_keeps_and_what_is_old_without_unpacking() -> None:
    weight, inputs = torch.randn(8, 8, requires_grad=True), torch.randn(4, 8)
    first = (inputs @ weight).exp()
    before = graphs.now()
    second = first.exp()
    unpacked: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: (tensor,), lambda packed: unpacked.append(1) or packed[0]
    ):
        third = second.sin()

    found = graphs.look([third.grad_fn], Storages(), before=before)
    assert (found.nodes, found.old) == (5, 2)  # sin, exp, exp, matmul, and the weight's own
    assert (
        found.saved == inputs.nbytes + first.nbytes + second.nbytes
    )  # what sin keeps is packed as somebody else wants it
    assert unpacked == []
    third.sum().backward()
    assert graphs.look([third.grad_fn], Storages()).saved == 0


def raised_over(batch: torch.Tensor) -> ValueError:
    """An exception whose frame keeps a tensor."""
    try:
        raise ValueError(len(batch))
    except ValueError as error:
        return error


def hold() -> dict[str, Any]:
    """A function with something in every kind of variable."""
    tensors = [torch.ones(1000) for _ in range(3)]
    nested = {"a": [torch.ones(10)], "b": {"c": (torch.ones(20), 5)}}
    recent = deque([torch.ones(5)], maxlen=3)
    recorder = jobs.Recorder()
    recorder.seen.append(torch.ones(7))
    ahead: queue.Queue[torch.Tensor] = queue.Queue()
    few: queue.Queue[torch.Tensor] = queue.Queue(maxsize=4)
    ahead.put(torch.ones(6))
    failed = [(1, raised_over(torch.ones(50)))]
    few.put(torch.ones(6))
    units = {unit.label: unit for unit in HolderScan(Storages(), only_frames=True, seconds=5).units()}
    assert tensors
    assert nested
    assert recent
    assert ahead.qsize() == few.qsize()
    assert failed
    return units


def test_a_look_finds_what_variables_and_attributes_hold() -> None:
    units = hold()

    assert (units["tensors"].tensors, units["tensors"].bytes) == (3, 12_000)
    assert (units["nested"].tensors, units["nested"].bytes) == (2, 120)
    assert units["recent"].flags == HolderFlag.BOUNDED
    assert units["recorder.seen"].bytes == 28
    assert units["failed"].bytes == 200  # by the frames that the exception came through
    assert units["ahead (Queue)"].bytes == 24  # of one with a bound nobody needs to know
    assert "recorder.forbidden" not in units
    assert "few (Queue)" not in units


class Registry:
    """Keeps things on the class."""

    seen: ClassVar[list[torch.Tensor]] = []


@functools.cache
def cached(number: int) -> torch.Tensor:
    return torch.ones(number)


def test_a_look_finds_what_classes_and_unbounded_caches_hold() -> None:
    Registry.seen.append(torch.ones(11))
    cached(13)
    units = {unit.label: unit for unit in HolderScan(Storages(), seconds=5).units()}

    assert units["Registry.seen"].bytes == 44
    assert units["cached (lru_cache)"].bytes == 52


class Monitored(torch.nn.Module):
    """A model that keeps a sum of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(4, 4)
        self.total = self.inner(torch.ones(2, 4)).sum()


def test_a_look_finds_what_a_model_keeps_that_only_a_framework_holds() -> None:
    trainer = itertools.repeat(Monitored())  # the model is no variable of the user's
    units = {unit.label: unit for unit in HolderScan(Storages(), seconds=5, models=[next(trainer)]).units()}

    assert units["Monitored.total"].graph.nodes > 1
    assert units["Monitored.total"].site.startswith(__file__)


def test_hooks_of_one_function_are_counted_over_all_modules_whatever_they_keep() -> None:
    def note(number: int, *_: object) -> None:
        """A hook."""

    piled = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    once = torch.nn.Linear(2, 2)
    once.register_forward_hook(functools.partial(note, 9))

    def counted() -> list[int]:
        assert {piled, once}  # they are variables here
        units = HolderScan(Storages(), seconds=5).units()
        return [unit.length for unit in units if unit.kind == HOOKS and "_forward_hooks" in unit.label]

    piled[0].register_forward_hook(functools.partial(note, 0))
    for other in (lambda *_: None, lambda *_: 2):
        piled[1].register_forward_hook(other)
    assert counted() == []
    for number in range(1, 4):
        piled[0].register_forward_hook(functools.partial(note, number))  # each is another object, written in one place
    assert counted() == [5]


def test_a_look_keeps_nothing_alive() -> None:
    def inner() -> weakref.ref[torch.Tensor]:
        gone, kept = torch.ones(3), [torch.ones(4)]
        HolderScan(Storages(), seconds=5).units()
        ref = weakref.ref(gone)
        del gone
        assert ref() is None
        return weakref.ref(kept[0])

    gc.disable()
    try:
        assert inner()() is None
    finally:
        gc.enable()


def test_a_function_that_asked_for_its_locals_keeps_them() -> None:
    import sys

    value = 5
    mine = locals()
    found = dict(locals_of(sys._getframe()))
    assert found["value"] == 5
    assert mine["value"] == 5
    assert value == 5


def test_the_host_and_the_workers_of_a_loader_are_counted() -> None:
    from torch.utils.data import DataLoader

    found = host()
    assert 0 < found.available <= found.limit
    assert 0 <= found.shm_free <= found.shm_size
    before = children()[0]
    batches = iter(DataLoader(list(range(8)), num_workers=2))
    next(batches)
    count, size = children()
    assert count - before == 2
    assert size > 1 << 20
    del batches


def test_only_requests_for_memory_count_as_such() -> None:
    assert is_out_of_memory("RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes")
    assert is_out_of_memory("MemoryError: ")
    assert not is_out_of_memory("RuntimeError: size mismatch")


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(32, 256), nn.Linear(256, 256), nn.Linear(256, 10)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.first(inputs).relu()
        hidden = checkpoint(lambda value: self.second(value).relu(), hidden, use_reentrant=False)
        scores: torch.Tensor = self.head(hidden)
        return scores


def trained(rank: int, world_size: int) -> list[float]:
    """Losses of a training with checkpointing; the memory of it is looked at when the environment says so."""
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(Checkpointed())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    generator, losses = torch.Generator().manual_seed(rank), []
    for _ in range(8):
        inputs, targets = jobs.batch(generator, 64)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.job
def test_deep_looks_change_no_bit_and_count_what_modules_keep() -> None:
    recording, looked_at = jobs.watched(trained, deep=True)
    _, left_alone = jobs.watched(trained, streams="environment")

    assert looked_at == left_alone
    memory = Memory.of(recording)
    for rank in memory.each():
        saved = {path: size for size, path, _, _ in rank.saved()}
        assert saved["first"] == 64 * 32 * 4  # its input; what relu gives is counted where it is kept first
        assert "second" not in saved  # recomputed
        assert rank.last("parameters") == rank.last("gradients") == 4 * (32 * 256 + 256 + 256 * 256 + 256 + 2560 + 10)
        assert rank.last("state") == 2 * rank.last("parameters") + 6 * 4
        assert rank.buckets() == rank.last("gradients")
        assert set(rank.phase_peaks()) >= {2, 3, 4}
