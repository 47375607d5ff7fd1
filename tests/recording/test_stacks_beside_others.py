"""Stacks, dumps and logs of one job: each rank stands where the best of them shows it, and one verdict is told of all."""

from __future__ import annotations

import io
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from sick import PLUGINS
from test_stack_files import BACKWARD, COLLECTIVE, PREFETCH, as_json, examined, laid, logged, text

from distdoctor.diagnosis.diagnosis import Diagnosis
from distdoctor.diagnosis.finding import Finding
from distdoctor.errors import UnreadableRecording
from distdoctor.launch.post_mortem import diagnose, open_recording
from distdoctor.recording.py_spy_dump import looks_like_text

GOLDEN = Path(__file__).parent.parent / "recordings" / "flight_recorder"
SLEEPS, SKIPS = (
    "gloo-torch-2.15-sleep",
    "gloo-torch-2.15-skip-json",
)  # of real jobs of two ranks, of which 1 is at fault
NAP = """\
    nap (train.py:12)
    main (train.py:30)
    <module> (train.py:41)
"""


def dumped(folder: Path, name: str, *ranks: int) -> Path:
    """The dumps of these ranks of a real job."""
    for rank in ranks:
        for path in (GOLDEN / name).glob(f"*rank_{rank}*"):
            shutil.copy2(path, folder)
    return folder


def the_finding(folder: Path) -> Finding:
    [found] = examined(folder).findings
    return found


def seen(found: Finding) -> tuple[str, tuple[int, ...], str, str]:
    return found.code, found.ranks, str(found.confidence), found.place.short


def test_the_dump_says_which_number_and_the_stack_where_the_absent_rank_is(tmp_path: Path) -> None:
    laid(dumped(tmp_path, SLEEPS, 0, 1), pyspy_rank1=text(8, NAP))

    found = the_finding(tmp_path)

    assert (seen(found), found.severity.name) == (("DD116", (1,), "likely", "train.py:12"), "ERROR")
    assert {place.ranks: place.role for place in found.places}[0,].startswith("waits in ")
    assert "rank 0 has enqueued" in found.why


def test_a_rank_without_a_dump_belongs_to_the_group_of_all_ranks(tmp_path: Path) -> None:
    """gloo writes no members: without the stack the group seems to be complete, and the network to be at fault."""
    laid(dumped(tmp_path, SLEEPS, 0), pyspy_rank1=text(8, NAP))

    found = the_finding(tmp_path)

    assert seen(found) == ("DD116", (1,), "likely", "train.py:12")
    assert "rank 1 left no dump" in found.why


def test_the_rank_that_did_not_come_may_be_in_a_call_that_no_dump_holds(tmp_path: Path) -> None:
    """gloo's recorder sees no sends and receives."""
    laid(dumped(tmp_path, SLEEPS, 0, 1), pyspy_rank1=text(8, COLLECTIVE.format(call="recv", line=15)))

    found = the_finding(tmp_path)

    assert (found.code, found.place.short) in {("DD113", "train.py:15"), ("DD101", "train.py:15")}
    assert 1 in found.ranks
    assert "recv" in found.title


def test_dumps_without_lines_get_those_of_the_stacks(tmp_path: Path) -> None:
    dumped(tmp_path, SKIPS, 0, 1)
    [without] = examined(tmp_path).findings
    calls = {rank: open_recording(tmp_path).ranks[rank].call(log.calls[-1]).op.word for rank, log in ranks_of(tmp_path)}
    lines = {rank: COLLECTIVE.format(call=call, line=20 + rank) for rank, call in calls.items()}
    laid(tmp_path, pyspy_rank0=text(7, lines[0]), pyspy_rank1=text(8, lines[1]))

    [found] = examined(tmp_path).findings

    assert (found.code, found.ranks, found.confidence) == (without.code, without.ranks, without.confidence)
    assert {place.ranks: place.site.short for place in found.places} == {(0,): "train.py:20", (1,): "train.py:21"}


def ranks_of(folder: Path) -> list[tuple[int, object]]:
    return sorted(open_recording(folder).ranks.items())  # type: ignore[arg-type]


def test_a_stack_in_another_operation_than_the_dump_gives_no_line(tmp_path: Path) -> None:
    dumped(tmp_path, SKIPS, 0, 1)
    laid(tmp_path, pyspy_rank0=text(7, COLLECTIVE.format(call="scatter", line=20)))

    log = open_recording(tmp_path).ranks[0]
    assert not log.call(log.calls[-1]).site


def test_who_died_without_a_dump_the_log_says(tmp_path: Path) -> None:
    dumped(tmp_path, SLEEPS, 0)
    logged(
        tmp_path,
        "[rank1]: Traceback (most recent call last):\n"
        '[rank1]:   File "/job/train.py", line 20, in load\n'
        '[rank1]:     raise ValueError("no such shard")\n'
        "[rank1]: ValueError: no such shard\n",
    )

    found = the_finding(tmp_path)

    assert seen(found) == ("DD110", (1,), "likely", "train.py:20")
    assert "rank 0 wait for it in" in found.why or "rank 0 waits for it in" in found.why


def test_what_a_log_says_of_ranks_that_left_dumps_came_later(tmp_path: Path) -> None:
    """The launcher ends whoever lives, the culprit as well, and watchdogs abort those that waited."""
    dumped(tmp_path, SLEEPS, 0, 1)
    [without] = examined(tmp_path).findings
    logged(tmp_path, "  rank      : 0 (local_rank: 0)\n  exitcode  : -6 (pid: 12421)\n")

    assert the_finding(tmp_path).code == without.code


ENDED = "  rank      : 1 (local_rank: 1)\n  exitcode  : {code} (pid: 12423)\n"


def test_a_rank_that_was_killed_before_it_could_dump_is_the_cause(tmp_path: Path) -> None:
    dumped(tmp_path, SLEEPS, 0)
    logged(tmp_path, "[rank0]: RuntimeError: Connection closed by peer [127.0.0.1]:47530\n" + ENDED.format(code=-9))

    assert (the_finding(tmp_path).code, the_finding(tmp_path).ranks) == ("DD110", (1,))


def test_who_had_faulthandler_end_it_is_told_by_where_it_stood(tmp_path: Path) -> None:
    dumped(tmp_path, SLEEPS, 0)
    stack = "".join(f"[rank1]: {line}\n" for line in FAULT.format(line=30, function="fetch").splitlines())
    logged(
        tmp_path,
        stack + "[rank0]: RuntimeError: Connection closed by peer [127.0.0.1]:47530\n" + ENDED.format(code=1),
    )

    assert seen(the_finding(tmp_path)) == ("DD116", (1,), "likely", "train.py:30")


WATCHDOGS = "".join(
    f"[rank{rank}]:[E124 03:21:54.1 ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=9133, OpType=ALLREDUCE, NumelIn=2417665, NumelOut=2417665, Timeout(ms)=600000) ran for 600000 ms\n"
    f"[rank{rank}]:[E124 03:21:54.1 ProcessGroupNCCL.cpp:2268] [PG ID 0 PG GUID 0(default_pg) Rank {rank}]  failure detected by "
    "watchdog at work sequence id: 9133 PG status: last enqueued work: 9135, last completed work: 9132\n"
    for rank in (1, 2, 3)
)


def test_the_stack_of_the_silent_rank_is_where_the_log_says_that_it_was_missed(tmp_path: Path) -> None:
    logged(tmp_path, "[rank0]: step 9132 loss 2.1\n" + WATCHDOGS)
    laid(tmp_path, rank0=text(7, NAP))

    found = the_finding(tmp_path)

    assert seen(found) == ("DD116", (0,), "likely", "train.py:12")
    assert {place.ranks: place.role for place in found.places}[
        1, 2, 3
    ] == "gave up waiting in ALLREDUCE #9133 of default_pg"
    assert "waited until the timeout" in found.why


def test_a_silent_rank_that_is_at_work_is_shown_at_its_line_too(tmp_path: Path) -> None:
    logged(tmp_path, "[rank0]: step 9132 loss 2.1\n" + WATCHDOGS)
    laid(tmp_path, rank0=text(7, NAP, state="active+gil"))

    assert seen(the_finding(tmp_path))[:2] == ("DD116", (0,))
    assert the_finding(tmp_path).place.short == "train.py:12"


def printed(frames: str, prefix: str, pid: int) -> list[str]:
    return [prefix + line for line in text(pid, frames).splitlines()]


def interleaved(*blocks: list[str]) -> str:
    """Lines of several processes as they come into one log."""
    most = max(map(len, blocks))
    return "\n".join(block[at] for at in range(most) for block in blocks if at < len(block)) + "\n"


@pytest.mark.parametrize("prefix", ["[default{}]:", "[rank{}]: ", "{}: ", "2026-11-27T13:34:0{0}.12Z [rank{0}]: "])
def test_stacks_that_ranks_print_into_a_log_are_told_by_its_prefixes(prefix: str, tmp_path: Path) -> None:
    ways = [BACKWARD + PREFETCH, NAP, BACKWARD]
    blocks = [printed(way, prefix.format(rank), 100 + rank) for rank, way in enumerate(ways)]
    log = logged(tmp_path, "".join(f"INFO step {n} loss 2.0\n" for n in range(30)) + interleaved(*blocks))

    recording = open_recording(log)

    assert recording.stacks is not None
    assert [len(one.threads) for _, one in recording.stacks.processes()] == [2, 1, 1]
    assert seen(told(log))[:2] == ("DD116", (1,))
    assert told(log).place.short == "train.py:12"


def told(path: Path) -> Finding:
    [found] = examined(path).findings
    return found


FAULT = """\
Timeout (0:00:10)!
Thread 0x00007f01 (most recent call first):
  File "/job/train.py", line {line} in {function}
  File "/job/train.py", line 56 in <module>
"""
WAITS = """\
Timeout (0:00:10)!
Thread 0x00007f01 (most recent call first):
  File "/venv/lib/python3.11/site-packages/torch/autograd/graph.py", line 1072 in _engine_run_backward
  File "/job/train.py", line 47 in main
  File "/job/train.py", line 56 in <module>
"""


def test_pods_that_print_at_once_are_kept_apart_and_named(tmp_path: Path) -> None:
    ways = [WAITS, FAULT.format(line=30, function="fetch"), WAITS]
    blocks = [[f"[pod/train-worker-{n}/main] {line}" for line in way.splitlines()] for n, way in enumerate(ways)]
    found = told(logged(tmp_path, interleaved(*blocks)))

    assert (found.code, found.ranks, found.place.short) == ("DD116", (), "train.py:30")
    assert "[pod/train-worker-1/main]" in found.why


def test_a_file_of_stacks_adds_to_those_that_the_log_holds(tmp_path: Path) -> None:
    lines = [f"[rank{rank}]: {line}" for rank in (0, 2) for line in WAITS.splitlines()]
    logged(tmp_path, "\n".join(lines) + "\n")
    laid(tmp_path, rank1=text(8, NAP))

    assert seen(the_finding(tmp_path))[:2] == ("DD116", (1,))
    assert {place.ranks for place in the_finding(tmp_path).places} == {(1,), (0, 2)}


@pytest.mark.parametrize("prefix", ["", "[rank{}]: "])
def test_stacks_that_a_log_goes_on_after_are_of_no_hang(prefix: str, tmp_path: Path) -> None:
    """faulthandler.dump_traceback_later(600, repeat=True), as some always have it."""
    ways = [WAITS, FAULT.format(line=30, function="fetch").replace("7f01", "7f02")]
    stacks = "".join(prefix.format(rank) + line + "\n" for rank, way in enumerate(ways) for line in way.splitlines())
    trains = "".join(f"step {step} loss 2.0\n" for step in range(8))

    assert [one.code for one in examined(logged(tmp_path, stacks)).findings] == ["DD116"]
    assert examined(logged(tmp_path, stacks + trains)).findings == ()


def by_standard_input(monkeypatch: pytest.MonkeyPatch, data: bytes) -> Diagnosis:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data)))
    return diagnose(open_recording(Path("-")), PLUGINS.checks, PLUGINS.remedies)


@pytest.mark.parametrize("form", [text, as_json])
def test_stacks_come_by_the_standard_input(form: object, monkeypatch: pytest.MonkeyPatch) -> None:
    data = "\n".join(form(pid, way) for pid, way in ((7, BACKWARD), (8, NAP)))  # type: ignore[operator]

    [found] = by_standard_input(monkeypatch, data.encode()).findings

    assert (found.code, found.ranks, found.place.short) == ("DD116", (1,), "train.py:12")


def test_a_log_by_the_standard_input_may_hold_stacks(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = [printed(way, f"[rank{rank}]: ", 100 + rank) for rank, way in enumerate([BACKWARD, NAP])]

    [found] = by_standard_input(monkeypatch, interleaved(*blocks).encode()).findings

    assert (found.code, found.ranks, found.place.short) == ("DD116", (1,), "train.py:12")


def test_broken_stacks_by_the_standard_input_are_refused_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnreadableRecording, match="cannot be read as stacks"):
        by_standard_input(monkeypatch, b'[{"thread_id": 1, "frames": ')


def test_a_log_that_holds_stacks_further_down_is_a_log() -> None:
    lines = [f"step {n}" for n in range(20)]

    assert looks_like_text(text(7, NAP).splitlines())
    assert looks_like_text(["== rank 0 ==", *text(7, NAP).splitlines()])
    assert not looks_like_text([*lines, *text(7, NAP).splitlines()])
