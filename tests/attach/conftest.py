"""Real jobs to look at from outside. Every process of a job is ended by its pid when the test is over."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from looking import VICTIM, Job, free_port, start


@pytest.fixture
def jobs() -> Iterator[Callable[..., Job]]:
    """Start the victim's two ranks by hand, with the variables that launchers set: `jobs("lock")`."""
    started: list[Job] = []

    def begin(mode: str, *, ready: int = 2, world: int = 2, folder: Path | None = None) -> Job:
        shared = {
            "WORLD_SIZE": str(world),
            "LOCAL_WORLD_SIZE": str(world),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
        }
        ranks = [
            start([sys.executable, str(VICTIM), mode], folder, RANK=str(rank), LOCAL_RANK=str(rank), **shared)
            for rank in range(world)
        ]
        job = Job(ranks)
        started.append(job)
        job.wait_for("ready", ready)
        return job

    yield begin
    for job in started:
        job.end()


@pytest.fixture
def launched() -> Iterator[Callable[..., Job]]:
    """Start any command that runs the victim: `launched([...])`."""
    started: list[Job] = []

    def begin(words: list[str], *, ready: int = 2) -> Job:
        job = Job([start(words)])
        started.append(job)
        job.wait_for("ready", ready)
        return job

    yield begin
    for job in started:
        job.end()
