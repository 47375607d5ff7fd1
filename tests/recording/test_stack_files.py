"""Stacks that somebody copied: whose they are, what is known of them, and what is said of what one moment does not prove."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from sick import PLUGINS

from distdoctor.diagnosis.diagnosis import Diagnosis
from distdoctor.errors import NothingToInspect
from distdoctor.launch.post_mortem import diagnose, open_recording
from distdoctor.recording.recording import Recording
from distdoctor.recording.stack_files import looks_like_stacks

BACKWARD = """\
    _engine_run_backward (torch/autograd/graph.py:1072)
    backward (torch/autograd/__init__.py:395)
    Tensor.backward (torch/_tensor.py:623)
    main (train.py:33)
    <module> (train.py:41)
"""
DECODE = """\
    decode (train.py:{line})
    main (train.py:30)
    <module> (train.py:41)
"""
QUEUE = """\
    Condition.wait (threading.py:327)
    Queue.get (queue.py:171)
    Prefetcher.next_batch (train.py:40)
    main (train.py:30)
    <module> (train.py:41)
"""
PREFETCH = """\
Thread 5011 (idle): "prefetch"
    Condition.wait (threading.py:327)
    Queue.put (queue.py:140)
    Prefetcher._fill (train.py:29)
    Thread.run (threading.py:982)
"""
COLLECTIVE = """\
    {call} (torch/distributed/distributed_c10d.py:4065)
    _exception_logger.<locals>.wrapper (torch/distributed/c10d_logger.py:83)
    step (train.py:{line})
    <module> (train.py:41)
"""
LOADING = """\
    Queue.get (multiprocessing/queues.py:113)
    _MultiProcessingDataLoaderIter._try_get_data (torch/utils/data/dataloader.py:1293)
    _BaseDataLoaderIter.__next__ (torch/utils/data/dataloader.py:725)
    main (train.py:42)
    <module> (train.py:54)
"""
WORKING = """\
    Archive.__getitem__ (train.py:27)
    _MapDatasetFetcher.fetch (torch/utils/data/_utils/fetch.py:54)
    _worker_loop (torch/utils/data/_utils/worker.py:375)
    main (train.py:42)
    <module> (train.py:54)
"""


def text(pid: int, frames: str, state: str = "idle", more: str = "", command: str = "python train.py") -> str:
    """What py-spy prints of one process."""
    head = f"Process {pid}: {command}\nPython v3.11.7 (/usr/bin/python3.11)\n\n"
    return f'{head}Thread {pid} ({state}): "MainThread"\n{frames}{more}'


def as_json(pid: int, frames: str) -> str:
    """The same as JSON, with whole paths."""
    found = []
    for line in frames.splitlines():
        name, _, place = line.strip().removesuffix(")").rpartition(" (")
        path, _, number = place.rpartition(":")
        whole = f"/venv/lib/python3.11/site-packages/{path}" if path.startswith("torch/") else f"/job/{path}"
        found.append({"name": name, "filename": whole, "short_filename": path, "line": int(number), "locals": None})
    thread = {
        "pid": pid,
        "thread_id": 140064839633792,
        "thread_name": "MainThread",
        "os_thread_id": pid,
        "active": False,
    }
    return json.dumps([thread | {"owns_gil": False, "frames": found}])


def laid(folder: Path, **files: str) -> Path:
    """A folder with these files: `__` stands for a slash, the suffix is `.txt`."""
    for name, content in files.items():
        path = folder / f"{name.replace('__', '/')}{'' if '.' in name else '.txt'}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return folder


def examined(folder: Path) -> Diagnosis:
    return diagnose(open_recording(folder), PLUGINS.checks, PLUGINS.remedies)


def said(folder: Path) -> list[tuple[str, tuple[int, ...], str, str]]:
    """(code, ranks, confidence, place) of all findings."""
    return [(one.code, one.ranks, str(one.confidence), one.place.short) for one in examined(folder).findings]


def sites(recording: Recording) -> dict[int, str]:
    assert recording.stacks is not None
    found = {}
    for rank, process in recording.stacks.processes():
        user = process.main.user_frame if process.main else None
        found[rank] = user.site.short if user else ""
    return found


def test_a_rank_in_its_own_code_while_others_wait_is_likely_where_its_line_is_no_proof(tmp_path: Path) -> None:
    laid(tmp_path, pyspy_rank0=text(7, BACKWARD), pyspy_rank1=text(8, DECODE.format(line=15)))

    [found] = examined(tmp_path).findings

    assert (found.code, found.ranks, str(found.confidence), found.place.short) == (
        "DD116",
        (1,),
        "likely",
        "train.py:15",
    )
    assert "not for how long" in found.why
    assert " s" not in found.title


def test_ranks_that_are_here_and_there_are_on_their_way(tmp_path: Path) -> None:
    collective = COLLECTIVE.format(call="all_reduce", line=12)
    laid(tmp_path, rank0=text(7, collective), rank1=text(8, DECODE.format(line=15)), rank2=text(9, QUEUE))

    assert said(tmp_path) == []


def test_two_of_four_ranks_in_their_own_code_may_belong_to_another_group(tmp_path: Path) -> None:
    laid(tmp_path, **{f"rank{rank}": text(70 + rank, BACKWARD if rank < 2 else QUEUE) for rank in range(4)})

    assert said(tmp_path) == [("DD116", (2, 3), "possible", "train.py:40")]


def test_a_rank_at_work_in_the_midst_of_a_step_is_no_hang(tmp_path: Path) -> None:
    laid(tmp_path, rank0=text(7, BACKWARD), rank1=text(8, DECODE.format(line=15), "active+gil"))

    diagnosis = examined(tmp_path)

    assert not diagnosis.findings
    assert not diagnosis.healthy
    assert "rank 1 was seen at train.py:15: is in decode" in diagnosis.left_open


@pytest.mark.parametrize("frames", [BACKWARD, COLLECTIVE.format(call="all_reduce", line=12)])
def test_ranks_that_all_wait_in_one_call_are_no_hang_as_one_look_shows_them(frames: str, tmp_path: Path) -> None:
    assert said(laid(tmp_path, rank0=text(7, frames), rank1=text(8, frames))) == []


def test_ranks_in_different_collectives_are_told_apart(tmp_path: Path) -> None:
    reduce, barrier = COLLECTIVE.format(call="reduce", line=52), COLLECTIVE.format(call="barrier", line=70)
    laid(tmp_path, rank0=text(7, barrier), rank1=text(8, reduce), rank2=text(9, reduce))

    assert said(tmp_path) == [("DD101", (0,), "likely", "train.py:70")]


def test_four_ranks_in_two_calls_may_be_in_groups_of_their_own(tmp_path: Path) -> None:
    one, other = COLLECTIVE.format(call="all_reduce", line=52), COLLECTIVE.format(call="all_gather", line=70)
    laid(tmp_path, **{f"rank{rank}": text(70 + rank, one if rank < 3 else other) for rank in range(4)})

    assert said(tmp_path) == [("DD101", (3,), "possible", "train.py:70")]


def test_all_ranks_that_receive_at_once_are_a_ring_without_arguments(tmp_path: Path) -> None:
    receives = COLLECTIVE.format(call="recv", line=29)
    laid(tmp_path, **{f"rank{rank}": text(70 + rank, receives) for rank in range(3)})

    assert said(tmp_path) == [("DD114", (0, 1, 2), "likely", "train.py:29")]


def test_one_rank_that_sends_breaks_the_ring(tmp_path: Path) -> None:
    receives, sends = COLLECTIVE.format(call="recv", line=29), COLLECTIVE.format(call="send", line=31)
    laid(tmp_path, rank0=text(7, sends), rank1=text(8, receives))

    assert not [one for one in said(tmp_path) if one[0] == "DD114"]


def test_a_loader_whose_workers_stand_at_one_line_is_told_once_for_all_ranks(tmp_path: Path) -> None:
    files = {f"rank{rank}_main": text(70 + rank, LOADING) for rank in range(2)}
    files |= {f"rank{rank}_worker": text(80 + rank, WORKING) for rank in range(2)}

    assert said(laid(tmp_path, **files)) == [("DD115", (0, 1), "possible", "train.py:27")]


def test_a_worker_at_work_is_not_blamed(tmp_path: Path) -> None:
    laid(tmp_path, rank0_main=text(7, LOADING), rank0_worker=text(8, WORKING, "active"))

    assert said(tmp_path) == []


def test_workers_of_one_file_belong_to_the_process_that_started_them(tmp_path: Path) -> None:
    parent = "Parent Process {}: python train.py\n\n"
    worker = text(9, WORKING).replace("\n\n", "\n" + parent.format(8), 1)
    laid(tmp_path, all=f"{text(7, BACKWARD)}\n{'-' * 80}\n{text(8, LOADING)}\n{worker}")

    stacks = open_recording(tmp_path).stacks

    assert stacks is not None
    assert {rank: len(seen.workers) for rank, seen in stacks.ranks.items()} == {0: 0, 1: 1}


def test_text_and_json_of_a_process_are_one_process_and_one_look(tmp_path: Path) -> None:
    laid(tmp_path, rank0=text(7, BACKWARD), rank1=text(8, DECODE.format(line=15)))
    laid(tmp_path, **{"rank0.json": as_json(7, BACKWARD), "rank1.json": as_json(8, DECODE.format(line=15))})

    stacks = open_recording(tmp_path).stacks

    assert stacks is not None
    assert stacks.copies == 1
    assert [process.pid for _, process in stacks.processes()] == [7, 8]
    assert sites(open_recording(tmp_path)) == {0: "train.py:33", 1: "train.py:15"}


def test_one_line_is_one_line_in_text_and_in_json(tmp_path: Path) -> None:
    laid(tmp_path, **{"rank0.json": as_json(7, BACKWARD)}, rank1=text(8, BACKWARD), rank2=text(9, QUEUE))

    [found] = examined(tmp_path).findings

    assert [place.ranks for place in found.places] == [(2,), (0, 1)]


ROUNDS: dict[str, Callable[[int], str]] = {
    "folders": lambda at: f"t{at}__rank_{{rank}}",
    "names": lambda at: f"rank{{rank}}_{at}",
}


@pytest.mark.parametrize("form", ROUNDS)
def test_rounds_of_copies_are_samples_of_one_process(form: str, tmp_path: Path) -> None:
    for at, line in enumerate((16, 15, 15)):
        name = ROUNDS[form](at)
        decode = text(8, DECODE.format(line=line), "active+gil")
        laid(tmp_path, **{name.format(rank=0): text(7, BACKWARD), name.format(rank=1): decode})

    stacks = open_recording(tmp_path).stacks

    assert stacks is not None
    assert stacks.copies == 3
    assert {rank: process.moved for rank, process in stacks.processes()} == {0: False, 1: True}
    assert said(tmp_path) == [("DD123", (1,), "possible", "train.py:15")]


def test_a_rank_at_one_line_in_all_rounds_stands(tmp_path: Path) -> None:
    for at in range(2):
        laid(tmp_path, **{f"t{at}__rank_0": text(7, BACKWARD), f"t{at}__rank_1": text(8, QUEUE)})

    [found] = examined(tmp_path).findings

    assert (found.code, found.ranks, str(found.confidence)) == ("DD116", (1,), "likely")
    assert "its stack was the same in all 2 copies" in found.why


def log_of(folder: Path, *, seconds_after: float) -> Path:
    """A job's log whose last line was printed so long after the stacks beside it were taken."""
    now = time.time()
    for path in folder.rglob("*.txt"):
        os.utime(path, (now - 60, now - 60))
    at = now - 60 + seconds_after
    moment = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(at - 3600))  # in another zone
    (folder / "train.log").write_text(f"{moment},000 step 5 loss 2.2140\n")
    os.utime(folder / "train.log", (at + 0.5, at + 0.5))
    return folder


def test_a_log_that_goes_on_after_the_stacks_is_of_a_slow_job(tmp_path: Path) -> None:
    for at, line in enumerate((16, 15)):
        decode = text(8, DECODE.format(line=line), "active+gil")
        laid(tmp_path, **{f"t{at}__rank_0": text(7, BACKWARD), f"t{at}__rank_1": decode})

    [found] = examined(log_of(tmp_path, seconds_after=20)).findings

    assert (found.code, found.ranks, str(found.confidence)) == ("DD123", (1,), "likely")
    assert "so the job does not hang" in found.why


def test_what_stands_in_the_stacks_of_a_job_that_goes_on_is_no_hang(tmp_path: Path) -> None:
    laid(tmp_path, rank0=text(7, BACKWARD), rank1=text(8, QUEUE))

    assert [one[0] for one in said(log_of(tmp_path, seconds_after=-20))] == ["DD116"]
    assert said(log_of(tmp_path, seconds_after=20)) == []


def test_a_thread_that_only_the_others_have_is_named(tmp_path: Path) -> None:
    laid(tmp_path, rank0=text(7, BACKWARD, more=PREFETCH), rank1=text(8, QUEUE))

    [found] = examined(tmp_path).findings

    assert "rank 0 run the thread prefetch (_fill, train.py:29), rank 1 has none" in found.why


# --- whose it is ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "names",
    [
        ("pyspy_rank0", "pyspy_rank1"),
        ("stack-0", "stack-1"),
        ("node0__rank0", "node1__rank1"),
        ("rank_0__stack", "rank_1__stack"),
        ("0__py-spy", "1__py-spy"),
        ("pid_7", "pid_8"),  # by their order
        ("a", "b"),
    ],
)
def test_the_rank_is_in_the_name_or_in_a_folder_else_in_the_order(names: tuple[str, str], tmp_path: Path) -> None:
    laid(tmp_path, **{names[0]: text(7, BACKWARD), names[1]: text(8, QUEUE)})

    assert sites(open_recording(tmp_path)) == {0: "train.py:33", 1: "train.py:40"}


def test_the_rank_is_in_the_command_line(tmp_path: Path) -> None:
    commands = [f"python train.py --local-rank={rank}" for rank in (1, 0)]
    laid(tmp_path, a=text(7, BACKWARD, command=commands[0]), b=text(8, QUEUE, command=commands[1]))

    recording = open_recording(tmp_path)

    assert sites(recording) == {0: "train.py:40", 1: "train.py:33"}
    assert not recording.troubles


def test_the_rank_is_in_the_locals(tmp_path: Path) -> None:
    named = "    main (train.py:30)\n        Locals:\n            rank: {}\n"
    laid(tmp_path, a=text(7, BACKWARD + named.format(1)), b=text(8, QUEUE + named.format(0)))

    assert sites(open_recording(tmp_path)) == {0: "train.py:40", 1: "train.py:33"}


def test_that_ranks_are_numbered_by_their_order_is_said(tmp_path: Path) -> None:
    laid(tmp_path, a=text(7, BACKWARD), b=text(8, QUEUE))

    assert "numbered in the order of nodes and process ids" in open_recording(tmp_path).troubles[0].what


def test_local_ranks_of_two_nodes_become_ranks_in_order(tmp_path: Path) -> None:
    files = {
        f"node{node}__rank{rank}": text(70 + rank, (BACKWARD, QUEUE)[node]) for node in range(2) for rank in range(2)
    }

    recording = open_recording(laid(tmp_path, **files))

    assert list(sites(recording).values()) == ["train.py:33"] * 2 + ["train.py:40"] * 2
    assert recording.troubles


def test_a_rank_of_which_there_is_no_stack_may_be_the_cause(tmp_path: Path) -> None:
    laid(tmp_path, rank0=text(7, BACKWARD), rank2=text(8, QUEUE))

    recording = open_recording(tmp_path)

    assert recording.stacks is not None
    assert recording.stacks.elsewhere == (1,)
    assert [one[2] for one in said(tmp_path)] == ["possible"]


def test_short_paths_of_packages_are_not_the_users(tmp_path: Path) -> None:
    laid(tmp_path, rank0=text(7, QUEUE), rank1=text(8, BACKWARD))

    main = open_recording(tmp_path).stacks.ranks[0].process.main  # type: ignore[union-attr]

    assert [frame.is_users for frame in main.frames] == [False, False, True, True, True]  # type: ignore[union-attr]


def test_a_script_that_is_called_like_a_module_of_python_is_the_users(tmp_path: Path) -> None:
    laid(tmp_path, rank0=text(7, "    main (profile.py:30)\n    <module> (profile.py:41)\n"))

    assert sites(open_recording(tmp_path)) == {0: "profile.py:30"}


# --- what somebody else may have put there --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [
        b"[" * 100_000,
        b'[{"thread_id": 1, "frames": [' + b"{}," * 1000,
        b'[{"thread_id": 1, "frames": [{"name": 1, "filename": null, "line": "x"}], "pid": 1e400}]',
        b'[{"thread_id": 1, "frames": 5}]',
        b'Process 7: \xff\xfe\x1b[2J\nPython v3.11\nThread 7 (idle): "Main',
        b"Process 7: x\nPython v3.1\n" + b"Thread 7 (idle)\n" * 5000,
        b"Process 7: x\nPython v3.1\nThread 7 (idle)\n" + b"    f (train.py:999999999999999999999)\n" * 500,
        b"Process 7: x\nPython v3.1\nThread 7 (idle)\n    " + b"( " * 100_000,
        b"Timeout (0:00:22)!\nThread 0x7f (most recent call first):\n" + b'  File "' * 50_000,
    ],
)
def test_damaged_and_hostile_files_are_read_or_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "rank0.txt").write_bytes(content)
    laid(tmp_path, rank1=text(8, QUEUE), rank2=text(9, BACKWARD))

    started = time.monotonic()
    recording = open_recording(tmp_path)

    assert recording.stacks is not None
    assert 1 in recording.stacks.ranks
    assert time.monotonic() - started < 5


def test_neither_a_fifo_nor_a_link_without_end_holds_the_reader(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rank0.txt")
    (tmp_path / "loop").symlink_to(tmp_path)
    laid(tmp_path, rank1=text(8, QUEUE))

    assert sites(open_recording(tmp_path)) == {1: "train.py:40"}


def test_an_escape_in_a_frame_does_not_reach_the_terminal(tmp_path: Path, say: Callable[..., object]) -> None:
    evil = DECODE.format(line=15).replace("decode", "dec\x1b]0;owned\x07ode")
    laid(tmp_path, rank0=text(7, BACKWARD), rank1=text(8, evil))

    assert "\x1b]0" not in str(say("examine", str(tmp_path)))


def test_a_log_is_no_stack_although_it_speaks_of_processes(tmp_path: Path) -> None:
    path = tmp_path / "rank0.log"
    path.write_text("Process 7: started\nThread pool of 4\nstep 1 loss 0.3\n")

    assert not looks_like_stacks(path)
    with pytest.raises(NothingToInspect):
        open_recording(tmp_path)


# --- within a log --------------------------------------------------------------------------------------------------------------

ALONE = """\
{prefix}Timeout (0:00:22)!
{prefix}Thread 0x00007f03b51f5b80 (most recent call first):
{prefix}  File "/job/train.py", line 30 in compact
{prefix}  File "/job/train.py", line 27 in add
{prefix}  File "/job/train.py", line 56 in <module>
"""
WAITS = """\
{prefix}Timeout (0:00:22)!
{prefix}Thread 0x00007fcccdc84b70 (most recent call first):
{prefix}  File "/usr/lib/python3.11/threading.py", line 331 in wait

{prefix}Thread 0x00007fcccdc84b80 [python3] (most recent call first):
{prefix}  File "/venv/lib/python3.11/site-packages/torch/autograd/graph.py", line 1072 in _engine_run_backward
{prefix}  File "/job/train.py", line 47 in main
{prefix}  File "/job/train.py", line 56 in <module>
"""
TABLE = """\
============================================================
[1]:
  time      : 2026-11-27_13:41:{second}
  rank      : 0 (local_rank: 0)
  exitcode  : 1 (pid: 12421)
[0]:
  time      : 2026-11-27_13:41:06
  rank      : 1 (local_rank: 1)
  exitcode  : 1 (pid: 12423)
"""
CRASH = """\
Fatal Python error: Segmentation fault

Thread 0x00007fc19440fb60 (most recent call first):
  <no Python frame>

Current thread 0x00007fc19440fb80 (most recent call first):
  File "/usr/lib/python3.11/ctypes/__init__.py", line 519 in string_at
  File "/job/train.py", line 25 in lookup
  File "/job/train.py", line 53 in <module>

Extension modules: numpy._core._multiarray_umath, torch._C (total: 2)
[rank1]: Traceback (most recent call last):
[rank1]:   File "/job/train.py", line 33, in train
[rank1]: RuntimeError: Connection reset by peer
"""
CRASHED = """\
[0]:
  time      : 2026-11-27_13:43:05
  rank      : 0 (local_rank: 0)
  exitcode  : -11 (pid: 14333)  (SIGSEGV)
"""


def logged(folder: Path, content: str) -> Path:
    (folder / "job.log").write_text(content)
    return folder / "job.log"


def test_a_process_that_faulthandler_shows_alone_is_told_without_a_rank(tmp_path: Path) -> None:
    [found] = examined(logged(tmp_path, (ALONE + WAITS).format(prefix=""))).findings

    assert (found.code, found.ranks, str(found.confidence), found.place.short) == ("DD116", (), "likely", "train.py:30")
    assert found.title.startswith(
        "one process is in compact (train.py:30, called from add at train.py:27), 1 other waits inside backward"
    )


def test_the_first_to_end_is_the_first_that_dumped_itself(tmp_path: Path) -> None:
    both = (ALONE + WAITS).format(prefix="")

    assert said(logged(tmp_path, both + TABLE.format(second="07"))) == [("DD116", (1,), "likely", "train.py:30")]
    assert said(logged(tmp_path, both + TABLE.format(second="06"))) == [("DD116", (), "likely", "train.py:30")]


def test_the_only_one_that_dumped_itself_is_told_by_those_who_lost_it(tmp_path: Path) -> None:
    lost = "[rank0]: RuntimeError: [/gloo/transport/tcp/pair.cc:561] Connection closed by peer [127.0.0.1]:47530\n"

    [found] = examined(logged(tmp_path, ALONE.format(prefix="") + lost + TABLE.format(second="06"))).findings

    assert (found.code, found.ranks) == ("DD116", (1,))
    assert found.title.endswith("and rank 0 lost it")


def test_prefixes_say_whose_the_dumps_are(tmp_path: Path) -> None:
    text = ALONE.format(prefix="[rank1]:") + WAITS.format(prefix="[rank0]:")

    assert sites(open_recording(logged(tmp_path, text))) == {0: "train.py:47", 1: "train.py:30"}
    assert [one[:2] for one in said(tmp_path / "job.log")] == [("DD116", (1,))]


def test_processes_that_all_wait_tell_of_no_culprit(tmp_path: Path) -> None:
    other = WAITS.replace("84b80", "84c80").replace("84b70", "84c70")

    assert said(logged(tmp_path, (WAITS + other).format(prefix=""))) == []


def test_a_crash_is_the_rank_that_alone_ended_by_its_signal(tmp_path: Path) -> None:
    [found] = examined(logged(tmp_path, CRASH + CRASHED)).findings

    assert (found.code, found.ranks, found.place.short) == ("DD110", (0,), "train.py:25")
    assert found.title == "died of SIGSEGV in string_at, called at train.py:25"


def test_of_two_crashes_nobody_knows_whose_they_are(tmp_path: Path) -> None:
    other = CRASHED.replace(": 0 (local_rank: 0)", ": 2 (local_rank: 2)")

    [found] = examined(logged(tmp_path, 2 * CRASH + CRASHED + other)).findings

    assert "train.py:25" not in found.title


def test_a_file_of_faulthandler_for_each_rank_is_a_stack(tmp_path: Path) -> None:
    laid(tmp_path, rank0=WAITS.format(prefix=""), rank1=ALONE.format(prefix=""))

    assert sites(open_recording(tmp_path)) == {0: "train.py:47", 1: "train.py:30"}
    assert said(tmp_path) == [("DD116", (1,), "possible", "train.py:30")]
