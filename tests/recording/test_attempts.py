"""A job whose ranks were started again is read one start at a time, over all hosts."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from distdoctor.diagnosis.attempts import story
from distdoctor.launch.ends import asked_from_outside, ended_from_outside
from distdoctor.launch.heartbeat import Heartbeat
from distdoctor.launch.processes import this_process
from distdoctor.probe.attempts import RankNumbers, open_trace
from distdoctor.probe.writer import TraceWriter
from distdoctor.recording.recording import Attempt, RankEnd
from distdoctor.recording.trace.host_file import HostFile, host_from, read_host_files
from distdoctor.recording.trace.layout import Claim
from distdoctor.recording.trace.reader import read_trace
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
    "import sys; from distdoctor.probe.attempts import RankNumbers, open_trace\n"
    "folder, rank, size, given = sys.argv[1:]\n"
    "t = open_trace(folder, RankNumbers(int(rank), int(size), 0), (), int(given) if given else None)\n"
    "print(t and t.attempt)"
)


def start(folder: Path, rank: int, world_size: int, attempt: str = "") -> str:
    """A rank in a process of its own, which is gone afterwards; the number of its start."""
    done = subprocess.run(
        [sys.executable, "-c", OPEN, str(folder), str(rank), str(world_size), attempt],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.strip()


def test_starts_are_numbered_alike_whatever_the_launcher_says(tmp_path: Path) -> None:
    assert [start(tmp_path, rank, 2) for rank in (0, 1)] == ["0", "0"]
    assert [start(tmp_path, rank, 2) for rank in (1, 0)] == ["1", "1"]  # restarted
    assert [start(tmp_path, rank, 4) for rank in (3, 0, 2, 1)] == ["2"] * 4  # a host came


def test_the_agents_number_goes_before_all(tmp_path: Path) -> None:
    assert start(tmp_path, 0, 2, attempt="7") == "7"


def test_a_helper_of_a_rank_records_nothing(tmp_path: Path) -> None:
    assert open_trace(str(tmp_path), RankNumbers(0, 1, 0), ()) is not None

    assert start(tmp_path, 0, 1) == "None"


def test_sigterm_to_several_ranks_at_once_comes_from_outside() -> None:
    asked = {rank: RankEnd(None, signal.SIGTERM, at_ns=10**9 + rank) for rank in range(3)}
    crash = {**asked, 1: RankEnd(1, at_ns=10**9 - 1)}

    assert asked_from_outside(asked)
    assert not asked_from_outside(crash)
    assert not asked_from_outside({0: asked[0]})
    assert all(end.ended_by_launcher for end in ended_from_outside(asked).values())


HELPER = """
import sys
from distdoctor.probe.attempts import RankNumbers, open_trace
from distdoctor.recording.trace.layout import Claim
folder, given, *words = sys.argv[1:]
trace = open_trace(folder, RankNumbers(0, 1, 0), (), int(given) if given else None, joining="joins" in words)
if trace and "joins" in words:
    trace.claim(Claim.RANK)
if trace and "leaves" in words:
    trace.claim(Claim.LEFT)
print(trace is not None, flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def helper(folder: Path, *words: str, given: str = "0") -> Iterator[tuple[int, bool]]:
    """Another process with the environment of rank 0; its pid, and whether it has the trace."""
    command = [sys.executable, "-c", HELPER, str(folder), given, *words]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.pid, process.stdout.readline().strip() == "True"
        assert process.stdin is not None
        process.stdin.close()


def writer_of(folder: Path) -> int:
    return read_trace(trace_paths(folder)[0], only=frozenset()).head.pid


RANK = RankNumbers(0, 1, 0)


def test_a_wrapper_gives_way_to_the_process_that_joins_the_job(tmp_path: Path) -> None:
    mine = open_trace(str(tmp_path), RANK, (), 0)

    with helper(tmp_path) as (_, recorded):
        assert not recorded
    with helper(tmp_path, "joins") as (pid, recorded):
        assert recorded
        assert writer_of(tmp_path) == pid

    assert mine is not None
    assert mine.gave_way


def test_a_rank_that_has_joined_keeps_its_trace(tmp_path: Path) -> None:
    mine = open_trace(str(tmp_path), RANK, (), 0, joining=True)
    assert mine is not None
    mine.claim(Claim.RANK)

    with helper(tmp_path, "joins") as (_, recorded):
        assert not recorded

    assert writer_of(tmp_path) == os.getpid()
    assert not mine.gave_way


@pytest.mark.parametrize("given", ["0", ""])
def test_a_helper_that_the_rank_has_started_gives_way_while_it_runs(given: str, tmp_path: Path) -> None:
    with helper(tmp_path, given=given) as (_, recorded):
        assert recorded
        assert open_trace(str(tmp_path), RANK, (), int(given) if given else None) is not None
        assert writer_of(tmp_path) == os.getpid()


@pytest.mark.parametrize("given", ["0", ""])
def test_a_helper_that_has_gone_gives_way_to_the_rank(given: str, tmp_path: Path) -> None:
    with helper(tmp_path, "leaves", given=given):
        pass
    (tmp_path / "rank-00000.a0.traceback.txt").write_text("of the helper")

    assert open_trace(str(tmp_path), RANK, (), int(given) if given else None) is not None

    assert trace_paths(tmp_path) == {0: tmp_path / "rank-00000.a0.trace"}
    assert writer_of(tmp_path) == os.getpid()
    assert not (tmp_path / "rank-00000.a0.traceback.txt").exists()


def test_a_trace_that_was_replaced_is_heard_as_a_new_one(tmp_path: Path) -> None:
    open_trace(str(tmp_path), RANK, (), 0)
    path = tmp_path / "rank-00000.a0.trace"
    heart = Heartbeat(path)
    assert heart.is_of(path)

    with helper(tmp_path, "joins"):
        assert not heart.is_of(path)
