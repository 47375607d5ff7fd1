"""Where the time of a step goes is written down as it was, and nothing of it twice."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from jobs import run_ranks, values
from torch import nn
from torch.utils.data import DataLoader, Dataset

from distdoctor.diagnosis.speed.step_times import step_times
from distdoctor.recording.trace.run_folder import read_run

pytestmark = pytest.mark.job
MILLISECOND = 1_000_000


class Slow(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.01)
        return torch.ones(4)


class Sleepy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        time.sleep(0.01)
        return grads[0]


class SleepySGD(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        time.sleep(0.005)
        return super().step(closure)


def train(rank: int, world_size: int) -> None:
    model, loader = nn.Linear(4, 1), DataLoader(Slow(), batch_size=2)
    optimizer = SleepySGD(model.parameters(), lr=0.01)
    for number, inputs in enumerate(loader):
        # Recomputed in backward: a pass inside the pass, which is a part of it.
        hidden = torch.utils.checkpoint.checkpoint(Sleepy.apply, inputs.requires_grad_(), use_reentrant=True)
        Sleepy.apply(model(hidden)).sum().backward()
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                for _ in loader:  # an evaluation: no step waits for it
                    pass


def train_with_closure(rank: int, world_size: int) -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = Sleepy.apply(model(torch.ones(2, 4))).pow(2).sum()
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)


def train_between(rank: int, world_size: int, how: str) -> None:
    """10 ms in the forward, and 20 ms between a step and the next forward."""
    model = nn.Linear(4, 1)
    if how == "wrapped":
        model = nn.parallel.DistributedDataParallel(model)  # type: ignore[assignment]
    optimizer, batches, total = torch.optim.SGD(model.parameters(), lr=0.01), iter(DataLoader(torch.ones(64, 4))), 0.0
    following = next(batches)
    for _ in range(8):
        inputs = following if how == "fetched ahead" else next(batches) if how == "loader" else torch.ones(2, 4)
        if how not in ("loader", "wrapped"):
            optimizer.zero_grad()
        loss = model(inputs).sum()
        time.sleep(0.01)
        if how == "fetched ahead":
            following = next(batches)
        if how in ("loader", "wrapped"):
            optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.02)
        total += loss.item()


def times(folder: Path) -> Any:
    recording = read_run(folder)
    assert not recording.troubles
    return recording.ranks[0].rows("times"), recording.ranks[0].steps


def test_two_micro_steps_are_added_up_and_an_evaluation_is_not(tmp_path: Path) -> None:
    values(run_ranks(train, 1, folder=str(tmp_path)))

    rows, steps = times(tmp_path)
    assert rows["step"].tolist() == [1, 2]
    assert rows["batches"].tolist() == rows["backwards"].tolist() == steps["micro_steps"].tolist() == [2, 2]
    for row in rows:
        assert 40 * MILLISECOND <= row["data_ns"] < 200 * MILLISECOND
        assert 40 * MILLISECOND <= row["backward_ns"] < 200 * MILLISECOND
        assert 5 * MILLISECOND <= row["optimizer_ns"] < 100 * MILLISECOND
        assert row["forward_ended_ns"] < row["backward_ended_ns"] < row["at_ns"]
        assert row["waited_ns"] == row["earlier_tails_ns"] == 0


@pytest.mark.parametrize("how", ["loader", "wrapped", "by hand", "fetched ahead"])
def test_what_follows_a_step_is_not_the_next_ones_forward(how: str, tmp_path: Path) -> None:
    values(run_ranks(train_between, 1, how, folder=str(tmp_path)))

    (found,) = step_times(read_run(tmp_path))

    assert 10 * MILLISECOND <= found.forward < 18 * MILLISECOND
    assert 20 * MILLISECOND <= found.other < 30 * MILLISECOND


def test_what_a_closure_computes_is_not_the_optimizers_time(tmp_path: Path) -> None:
    values(run_ranks(train_with_closure, 1, folder=str(tmp_path)))

    rows, _ = times(tmp_path)
    assert rows["step"].tolist() == [1, 2, 3]
    assert rows["backwards"][0] > 1  # it asks for it again before it has moved for good
    assert (rows["backward_ns"] >= rows["backwards"] * 10 * MILLISECOND).all()
    assert (rows["optimizer_ns"] < rows["backward_ns"]).all()
