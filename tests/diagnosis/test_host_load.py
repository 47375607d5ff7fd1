"""When ranks compute with more threads than cores: the threads, the cores that they share, and a queue that is really there."""

from __future__ import annotations

from typing import Any

import pytest
from sick import PLUGINS

from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import Finding
from distdoctor.recording.recording import Job, Recording
from distdoctor.recording.trace.events import CoreShare
from distdoctor.testing.rank_trace import TraceBuilder

SECOND = 10**9


def found(shares: list[dict[str, Any]], *, devices: int = 0, hosts: tuple[str, ...] = ()) -> list[Finding]:
    logs = {}
    for rank, about in enumerate(shares):
        log = TraceBuilder(rank, world_size=len(shares))
        log.environment = {"host": hosts[rank] if hosts else "node0", "cuda_devices": devices}
        share = {"cpus": (0, 1), "threads": 8, "steps": 60, "ran_ns": SECOND, "queued_ns": 2 * SECOND, **about}
        log.note(CoreShare(**share), site="train.py:9 main")
        logs[rank] = log.build()
    check = PLUGINS.checks["DD607"]
    return list(examine(Recording(Job(world_size=len(shares)), logs), [check]).findings)


def test_threads_that_share_two_cores_are_told_with_the_line_that_sets_them() -> None:
    (finding,) = found([{}, {}])

    assert finding.title == "2 ranks compute with 8 threads each on 2 cores of host node0"
    assert (finding.ranks, finding.place.short) == ((0, 1), "train.py:9")
    assert finding.prescriptions[0].change == "torch.set_num_threads(1)"


def test_a_quota_counts_like_missing_cores() -> None:
    cpus = tuple(range(64))

    assert found([{"cpus": cpus, "quota": 4.0}] * 2)
    assert not found([{"cpus": cpus}] * 2)


@pytest.mark.parametrize(
    "shares",
    [
        [{"threads": 1}] * 8,  # more ranks than cores, on purpose: fewer threads cannot help
        [{"queued_ns": SECOND // 10}] * 2,  # everybody gets a core when it needs one
        [{"cpus": (0, 1, 2, 3), "threads": 4}, {"cpus": (4, 5, 6, 7), "threads": 4}],  # pinned, each to its own
        [{"steps": 2}] * 2,
    ],
)
def test_what_only_looks_like_it_is_not_told(shares: list[dict[str, Any]]) -> None:
    assert not found(shares)


def test_hosts_are_judged_by_themselves_and_ranks_on_devices_not_at_all() -> None:
    share = {"cpus": tuple(range(6))}  # 8 threads: fewer than twice the cores, where 16 are more

    assert found([share] * 2)
    assert not found([share] * 2, hosts=("node0", "node1"))
    assert not found([{}] * 2, devices=2)
