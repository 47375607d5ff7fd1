"""A recorder that meets what it cannot work with says so and falls silent; the training goes on as without it."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import pytest
import torch
from jobs import data as jobs
from jobs import run_ranks, values
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from distdoctor import plugins
from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import CERTAIN, NOTE
from distdoctor.recording.trace.run_folder import read_run

pytestmark = pytest.mark.job


def trained(rank: int, world_size: int) -> list[float]:
    """A training in which somebody replaces the clock by one that tells fractions, as tests of schedules do."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    losses = []
    for step in range(6):
        if step == 3:
            time.monotonic_ns = lambda: time.monotonic() * 1e9  # type: ignore[assignment, return-value]
        loss = model(torch.full((2, 4), step + rank + 1.0)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_a_clock_that_tells_fractions_silences_the_recorder_which_says_so() -> None:
    plain = values(run_ranks(trained, 2, timeout=90))
    with tempfile.TemporaryDirectory() as folder:
        ends = run_ranks(jobs._watched, 2, trained, folder, {}, timeout=90, join=False)
        recording = read_run(Path(folder))

    diagnosis = examine(recording, plugins.load().checks.values())

    assert values(ends) == plain
    found = [one for one in diagnosis.findings if one.code == "DD902"]
    assert {rank for one in found for rank in one.ranks} == {0, 1}
    assert {(one.severity, one.confidence) for one in found} == {(NOTE, CERTAIN)}
    assert diagnosis.coverage is not None
    assert diagnosis.coverage.silenced == (0, 1)
    assert not diagnosis.healthy
