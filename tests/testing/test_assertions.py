"""The assertions hold in healthy ranks, and name what differs in others. These tests run in ranks themselves."""

from __future__ import annotations

import warnings
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset

from distdoctor.errors import WrongUse
from distdoctor.testing import assertions
from distdoctor.testing.assertions import (
    assert_disjoint_samples,
    assert_healthy,
    assert_peak_memory,
    assert_same_collectives,
    assert_same_on_all_ranks,
)
from distdoctor.testing.faults import Fault, planted

two = pytest.mark.distdoctor(nproc=2, timeout=60, allow="all")


@pytest.mark.job
@two
def test_replicas_are_the_same_until_one_bit_differs() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    for tensor in model.state_dict().values():
        tensor.fill_(0)
    assert_same_on_all_ranks(model)
    assert_same_on_all_ranks({"epoch": 3})

    with torch.no_grad():
        model[0].bias[1] += dist.get_rank() * 1e-7

    weights = r"1 of 7 differ between ranks\n0.bias: \[2\] float32 0, 0 on rank 0, \[2\] float32 0, .* on rank 1"
    with pytest.raises(AssertionError, match=weights):
        assert_same_on_all_ranks(model)
    with pytest.raises(AssertionError, match="the value: 0 on rank 0, 1 on rank 1"):
        assert_same_on_all_ranks(dist.get_rank())
    with pytest.raises(AssertionError, match="of_1: missing on rank 0, 0 on rank 1"):
        assert_same_on_all_ranks({"of_all": 0, **({"of_1": 0} if dist.get_rank() else {})})
    shapes = r"the value: \[4\] float32, norm 0 on rank 0, \[5\] float32, norm 0 on rank 1"
    with pytest.raises(AssertionError, match=shapes):
        assert_same_on_all_ranks(torch.zeros(4 + dist.get_rank()))
    turned = torch.arange(4.0) if dist.get_rank() else torch.arange(4.0).flip(0)
    bits = r"the value: other bits on rank 0, on rank 1 \(\[4\] float32, norm 3\.74165739\)"
    with pytest.raises(AssertionError, match=bits):
        assert_same_on_all_ranks(turned)


class Stream(IterableDataset):
    def __init__(self, step: int) -> None:
        self.step = step

    def __iter__(self):
        return iter(range(dist.get_rank() if self.step > 1 else 0, 8, self.step))


@pytest.mark.job
@two
def test_shares_are_disjoint_until_the_sampler_is_forgotten() -> None:
    data = TensorDataset(torch.arange(11))
    assert_disjoint_samples(DataLoader(data, 2, sampler=DistributedSampler(data)), epochs=2)
    assert_disjoint_samples(DataLoader(Stream(2), 2))

    told = r"11 of 11 samples .* in epoch 0 \(11 repetitions, 1 allowed\)\n0: by ranks(?s:.*)\nEvery rank drew the same"
    with pytest.raises(AssertionError, match=told):
        assert_disjoint_samples(DataLoader(data, 2))
    with pytest.raises(AssertionError, match=r"8 of 8 samples .*\nint64 0 \(\w+\): by ranks 0-1"):
        assert_disjoint_samples(DataLoader(Stream(1), 2))
    with pytest.raises(AssertionError, match="1 repetitions, 0 allowed"):
        assert_disjoint_samples(DataLoader(data, 2, sampler=DistributedSampler(data, shuffle=False)), padding=0)


@pytest.mark.job
@two
def test_collectives_are_compared_with_those_that_torch_issues_itself() -> None:
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
    with assert_same_collectives():
        model(torch.ones(1, 2)).sum().backward()
        dist.all_reduce(torch.ones(3))

    with pytest.raises(AssertionError, match="ranks disagree on collective 1 of the block"), assert_same_collectives():
        dist.all_reduce(torch.ones(3), op=dist.ReduceOp.SUM if dist.get_rank() else dist.ReduceOp.MAX)


@pytest.mark.job
@two
def test_memory_is_measured_at_its_peak() -> None:
    with assert_peak_memory("40 MiB"):
        torch.ones(1 << 20)
    with (
        pytest.raises(AssertionError, match=r"resident memory grew by \d+\.\d MiB, 40\.0 MiB are allowed"),
        assert_peak_memory("40 MiB"),
    ):
        torch.ones(32 << 20)
    with pytest.raises(WrongUse, match="no amount of memory"), assert_peak_memory("much"):
        pass


@pytest.mark.job
@pytest.mark.distdoctor(nproc=2, timeout=60, allow=("DD203", "DD103"))
def test_a_fault_happens_in_its_rank(inject_fault) -> None:
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inject_fault("drift", rank=1, at="step", number=2)
    for step in range(2):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        if step == 0:
            assert_same_on_all_ranks(model)
    with pytest.raises(AssertionError, match="differ between ranks"):
        assert_same_on_all_ranks(model)

    inject_fault("skip", rank=1, at="broadcast")
    inject_fault("raise", rank=0, at="barrier")
    told = torch.full((1,), float(dist.get_rank()))
    if dist.get_rank() == 1:
        dist.broadcast(told, 0)
        assert told.item() == 1.0
    else:
        with pytest.raises(RuntimeError, match="fault injected in rank 0 at barrier 1"):
            dist.barrier()


def test_a_fault_that_cannot_be_is_refused() -> None:
    with pytest.raises(WrongUse, match="there is no fault explode"):
        Fault("explode")
    with pytest.raises(WrongUse, match="nan needs parameters"):
        Fault("nan", at="barrier")
    with pytest.raises(WrongUse, match="has no function all_rename"), planted(Fault("delay", at="all_rename")):
        pass
    with pytest.raises(WrongUse, match=r"call 0 of rank -1.*\n?.*Ranks count from 0"):
        Fault("delay", rank=-1, number=0)


@pytest.mark.job
@two
def test_a_fault_that_does_not_happen_is_warned_of_in_its_rank() -> None:
    with pytest.raises(WrongUse, match="there is no rank 2 for the fault hang"), planted(Fault("hang", rank=2)):
        pass
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        with planted(Fault("raise", at="barrier", number=2)):
            dist.barrier()
    said = [str(one.message) for one in heard if "did not happen" in str(one.message)]
    told = "rank 1 has called torch.distributed.barrier 1 times, and it was to happen at number 2"
    assert said == ([f"the fault raise did not happen: {told}"] if dist.get_rank() == 1 else [])


def test_a_comparison_without_ranks_is_refused() -> None:
    with pytest.raises(WrongUse, match="no process group"):
        assert_same_on_all_ranks(1)


def _report(*findings: dict[str, object], exit_code: int = 0) -> dict[str, object]:
    return {"findings": [*findings], "examined": ["DD301"], "job": {"exit_code": exit_code}}


def test_healthy_is_no_error_no_warning_and_something_examined() -> None:
    place = {"path": "train.py", "line": 36}
    ill = {
        "code": "DD301",
        "slug": "missing-set-epoch",
        "severity": "warning",
        "ranks": [0, 1],
        "title": "again",
        "place": place,
    }
    assert_healthy(_report())
    assert_healthy(_report(ill), ignore=["missing-set-epoch"])
    assert_healthy(_report({**ill, "severity": "note"}))

    with pytest.raises(AssertionError, match=r"1 finding\nDD301 warning ranks 0-1 train\.py:36 again"):
        assert_healthy(_report(ill))
    with pytest.raises(AssertionError, match="exit code 3"):
        assert_healthy(_report(exit_code=3))
    with pytest.raises(AssertionError, match="nothing was examined"):
        assert_healthy({**_report(), "examined": []})
    with pytest.raises(WrongUse, match="ignore='DD999': there is no such check"):
        assert_healthy(_report(ill), ignore=["DD999"])


@pytest.mark.job
@pytest.mark.distdoctor(nproc=2, timeout=60, allow="all")
def test_a_collective_that_only_one_rank_calls_is_told_with_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assertions, "_PATIENCE", timedelta(seconds=1))
    quick = dist.new_group(timeout=timedelta(seconds=4))
    with pytest.raises((AssertionError, RuntimeError)) as told, assert_same_collectives():  # noqa: PT012
        if dist.get_rank() == 0:
            dist.all_reduce(torch.ones(2), group=quick)
    if dist.get_rank() == 1:
        assert "ranks disagree on collective 1 of the block\nrank 0: all_reduce [2] float32 sum  " in str(told.value)
        assert "test_assertions.py:" in str(told.value)
        assert str(told.value).endswith("rank 1: nothing")
