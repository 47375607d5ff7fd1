"""The check on accumulation looks at each update once: its work grows with the ranks, not with their square."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

from distdoctor.recording.recording import Job, Recording
from distdoctor_checks.replicas import mis_scaled_accumulation


def seconds(ranks: int) -> float:
    update: Any = lambda rank: SimpleNamespace(  # noqa: E731
        step=1, optimizer=0, rank=rank, roots="", flags=0, number=lambda name: 1
    )
    updates = [update(rank) for rank in range(ranks) for _ in range(20)]
    gradients: Any = SimpleNamespace(every_update=lambda: updates)
    began = time.process_time()
    assert not list(mis_scaled_accumulation.examine.examine(gradients, Recording(Job(), {})))
    return time.process_time() - began


def test_ten_times_the_ranks_take_about_ten_times_as_long() -> None:
    small, large = min(seconds(300) for _ in range(3)), min(seconds(3000) for _ in range(2))

    assert large < 40 * small
