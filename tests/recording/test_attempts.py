"""A job whose ranks were started again is read one start at a time, over all hosts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from distdoctor.diagnosis.attempts import story
from distdoctor.launch.ends import asked_from_outside, ended_from_outside
from distdoctor.launch.processes import this_process
from distdoctor.probe.attempts import open_trace
from distdoctor.probe.writer import TraceWriter
from distdoctor.recording.recording import Attempt, RankEnd
from distdoctor.recording.trace.host_file import HostFile, host_from, read_host_files
from distdoctor.recording.trace.run_folder import read_job, read_run, trace_paths

KILLED = RankEnd(None, 9, at_ns=5)
DONE = RankEnd(0, at_ns=9)


def launchers(folder: Path) -> list[HostFile]:
    """Host `one` with ranks 0-1 and host `two` with ranks 2-3, started twice because rank 3 was killed."""
    made = []
    ended = RankEnd(None, 15, ended_by_launcher=True, at_ns=6)
    for host, ranks in (("one", (0, 1)), ("two", (2, 3))):
        first = Attempt(0, 4, ranks, {rank: KILLED if rank == 3 else ended for rank in ranks})
        second = Attempt(1, 4, ranks, dict.fromkeys(ranks, DONE))
        key = replace(this_process(), host=host, pid=1 + len(made))
        file = HostFile(key, ("train.py",), running=False, exit_code=0, starts={0: first, 1: second})
        (folder / file.name).write_text(file.to_json())
        made.append(file)
    return made


def test_every_launcher_has_a_file_of_its_own_and_they_make_one_job(tmp_path: Path) -> None:
    written = launchers(tmp_path)

    job = read_job(tmp_path)

    assert read_host_files(tmp_path) == written
    assert job is not None
    assert (job.world_size, job.attempt, job.exit_code, job.running) == (4, 1, 0, False)
    assert job.ends == dict.fromkeys(range(4), DONE)
    assert job.earlier[0].ends[3] == KILLED
    assert story(job) == "attempt 1 was ended by rank 3 (SIGKILL); attempt 2 finished"


def test_hosts_that_join_later_are_no_failure(tmp_path: Path) -> None:
    ended = RankEnd(None, 15, ended_by_launcher=True, at_ns=6)
    first, second = Attempt(0, 2, (0, 1), {0: ended, 1: ended}), Attempt(1, 4, (0, 1), {0: DONE, 1: DONE})
    file = HostFile(this_process(), running=False, exit_code=0, starts={0: first, 1: second})
    (tmp_path / file.name).write_text(file.to_json())

    job = read_job(tmp_path)

    assert job is not None
    assert story(job) == ""


def test_traces_of_two_starts_are_never_mixed(tmp_path: Path) -> None:
    for rank in range(4):
        TraceWriter(str(tmp_path), rank, 4, 0, 0)
    for rank in (0, 1, 2):
        TraceWriter(str(tmp_path), rank, 4, 0, 1)

    assert trace_paths(tmp_path).keys() == {0, 1, 2}
    assert read_run(tmp_path, attempt=0).ranks.keys() == {0, 1, 2, 3}
    assert {log.attempt for log in read_run(tmp_path).ranks.values()} == {1}


def test_a_field_of_a_newer_distdoctor_is_left_out() -> None:
    found = host_from({"process": {"pid": 1, "colour": "red"}, "weather": 1, "starts": [
        {"attempt": 0, "world_size": 1, "ranks": [0], "ends": {"0": {"exit_code": 3, "mood": "bad"}}}]})  # fmt: skip

    assert found is not None
    assert found.starts[0].ends == {0: RankEnd(3)}
    assert host_from({"starts": 3}) is None


OPEN = (
    "import os, sys; from distdoctor.probe.attempts import open_trace\n"
    "t = open_trace(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), 0, ()); print(t and t.attempt)"
)


def start(folder: Path, rank: int, world_size: int, attempt: str = "") -> str:
    """A rank in a process of its own, which is gone afterwards; the number of its start."""
    env = {**os.environ, "DISTDOCTOR_ATTEMPT": attempt, "TORCHELASTIC_RESTART_COUNT": "0"}
    done = subprocess.run(
        [sys.executable, "-c", OPEN, str(folder), str(rank), str(world_size)],
        env=env, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.strip()


def test_starts_are_numbered_alike_whatever_the_launcher_says(tmp_path: Path) -> None:
    assert [start(tmp_path, rank, 2) for rank in (0, 1)] == ["0", "0"]
    assert [start(tmp_path, rank, 2) for rank in (1, 0)] == ["1", "1"]  # restarted
    assert [start(tmp_path, rank, 4) for rank in (3, 0, 2, 1)] == ["2"] * 4  # a host came


def test_the_agents_number_goes_before_all(tmp_path: Path) -> None:
    assert start(tmp_path, 0, 2, attempt="7") == "7"


def test_a_helper_of_a_rank_records_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DISTDOCTOR_ATTEMPT", raising=False)
    assert open_trace(str(tmp_path), 0, 1, 0, ()) is not None

    assert start(tmp_path, 0, 1) == "None"


def test_sigterm_to_several_ranks_at_once_comes_from_outside() -> None:
    asked = {rank: RankEnd(None, signal.SIGTERM, at_ns=10**9 + rank) for rank in range(3)}
    crash = {**asked, 1: RankEnd(1, at_ns=10**9 - 1)}

    assert asked_from_outside(asked)
    assert not asked_from_outside(crash)
    assert not asked_from_outside({0: asked[0]})
    assert all(end.ended_by_launcher for end in ended_from_outside(asked).values())
