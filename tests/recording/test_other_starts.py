"""Dumps of several starts or jobs in one folder are not mixed."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sick import PLUGINS

from distdoctor.diagnosis.examination import examine
from distdoctor.recording.open import read_any
from distdoctor.recording.recording import Recording
from tests.recording.nccl_job import HOST_STOPS, Fault, Job, Shape

CHECKS = [check for check in PLUGINS.checks.values() if check.code.startswith("DD1")]
HOUR_NS = 3_600_000_000_000
TIMES = ("time_created_ns", "time_discovered_started_ns", "time_discovered_completed_ns")


def later(dump: dict[str, Any], by_ns: int) -> dict[str, Any]:
    """The dump as if it had been written so much later."""
    entries = [entry | {name: entry[name] + by_ns for name in TIMES if entry[name]} for entry in dump["entries"]]
    return dump | {"entries": entries}


def write(place: Path, job: Job, by_ns: int = 0, lost: tuple[int, ...] = (), name: str = "dump_rank_") -> None:
    place.mkdir(parents=True, exist_ok=True)
    for rank in range(job.shape.world):
        if rank not in lost:
            dump = later(job.dump(rank, active_only=False), by_ns)
            (place / f"{name}{rank}").write_bytes(pickle.dumps(dump, protocol=2))


def troubles(recording: Recording) -> list[str]:
    return [trouble.what for trouble in recording.troubles]


def test_a_rank_without_a_dump_is_not_given_that_of_an_earlier_start(tmp_path: Path) -> None:
    write(tmp_path / "attempt_0", Job(Shape(2, 2, 1, steps=6), [Fault(HOST_STOPS, 0, 80)]))
    write(tmp_path / "attempt_1", Job(Shape(2, 2, 1, steps=6), [Fault(HOST_STOPS, 2, 40)]), HOUR_NS, lost=(2,))
    recording = read_any(tmp_path)
    diagnosis = examine(recording, CHECKS)

    assert sorted(recording.ranks) == [0, 1, 3]
    assert not diagnosis.findings
    assert "rank 2 of 4 left no dump" in diagnosis.left_open
    (said,) = troubles(recording)
    assert "attempt_0/dump_rank_* (ranks 0-3) is of another start, job or moment, and was left aside" in said


def test_two_jobs_of_different_sizes_are_not_mixed(tmp_path: Path) -> None:
    write(tmp_path, Job(Shape(2, 2, 1)), name="small_rank_")
    write(tmp_path, Job(Shape(2, 4, 1), [Fault(HOST_STOPS, 5, 30)]), 1, name="large_rank_")
    recording = read_any(tmp_path)
    (finding,) = examine(recording, CHECKS).findings

    assert (finding.code, finding.ranks) == ("DD116", (5,))
    assert [("small_rank_*" in said, "it counts 4 ranks" in said) for said in troubles(recording)] == [(True, True)]


def test_two_jobs_of_one_size_are_not_mixed(tmp_path: Path) -> None:
    """Side by side, at the same time: the later one is examined, and the other named."""
    write(tmp_path, Job(Shape(2, 2, 1, steps=6), [Fault(HOST_STOPS, 1, 70)]), name="first_rank_")
    write(tmp_path, Job(Shape(2, 2, 1, steps=6), [Fault(HOST_STOPS, 3, 40)]), 30_000_000_000, name="second_rank_")
    recording = read_any(tmp_path)
    (finding,) = examine(recording, CHECKS).findings

    assert (finding.code, finding.ranks) == ("DD116", (3,))
    assert ["first_rank_* (ranks 0-3)" in said for said in troubles(recording)] == [True]


def test_the_folders_of_hosts_are_of_one_start(tmp_path: Path) -> None:
    job = Job(Shape(2, 2, 1), [Fault(HOST_STOPS, 3, 20)])
    write(tmp_path / "host_a", job, lost=(2, 3))
    write(tmp_path / "host_b", job, lost=(0, 1))
    recording = read_any(tmp_path)

    assert sorted(recording.ranks) == [0, 1, 2, 3]
    assert troubles(recording) == []


@pytest.mark.parametrize(("lost", "moment", "code"), [((2,), None, 3), ((), None, 3), ((), 300, 5)])
def test_ranks_that_wait_are_a_hang_whoever_is_to_blame(
    tmp_path: Path, say: Callable[..., Any], lost: tuple[int, ...], moment: int | None, code: int
) -> None:
    """A rank without a dump is nobody's finding; dumps of different moments show no hang."""
    job = Job(Shape(2, 2, 1, steps=6), [] if moment else [Fault(HOST_STOPS, 2, 40)])
    for rank in set(range(4)) - set(lost):
        dump = job.dump(rank, moment and moment + 90 * rank, active_only=False)
        (tmp_path / f"dump_rank_{rank}").write_bytes(pickle.dumps(dump, protocol=2))

    assert say("examine", str(tmp_path)).code == code
