"""What the source writes into a buffer after a collective has carried it is no buffer that nobody averages."""

from __future__ import annotations

import pytest

from distdoctor.diagnosis.source.brought_together import brought_together
from distdoctor.recording.recording import SourceLine

STATISTICS = """import torch
import torch.distributed as dist


def merge(stats, all_reduce):
    totals = [stats.count.clone(), stats.running_mean * stats.count]
    for total in totals:
        all_reduce(total)
    count, weighted = totals
    stats.count.copy_(count)
    stats.running_mean.copy_(weighted / count)
    stats.seen.copy_(stats.count)


def sync(stats):
    merge(stats, lambda total: dist.all_reduce(total))


class Codebook:
    def forward(self, x):
        counts, sums = x.sum(0), x.t() @ x
        dist.all_reduce(counts)
        self.ema_counts.lerp_(counts, 0.1)
        self.ema_sums.lerp_(sums, 0.1)

    def sync(self):
        dist.broadcast(self.centre, 0)
        mean = dist.all_reduce(self.spread / 2)
        self.scale.data.copy_(mean)
"""


def together(*names: str, called: str = "dist.") -> list[str]:
    """`called`: the lines with this word were called."""
    lines = [n for n, line in enumerate(STATISTICS.splitlines(), 1) if called in line]
    return sorted(brought_together({"job.py": STATISTICS}, names, [SourceLine("job.py", line, "") for line in lines]))


@pytest.mark.parametrize("name", ["count", "running_mean", "ema_counts", "centre", "scale"])
def test_what_a_collective_carried_is_written_back(name: str) -> None:
    assert together(f"norm.{name}") == [f"norm.{name}"]


@pytest.mark.parametrize("name", ["ema_sums", "seen", "other"])
def test_what_nothing_carried_stays_each_ranks_own(name: str) -> None:
    assert together(f"norm.{name}") == []


def test_a_collective_that_was_not_called_brings_nothing_together() -> None:
    assert together("norm.ema_counts", "norm.centre", called="spread") == []
    assert together("norm.count", called="broadcast") == []
