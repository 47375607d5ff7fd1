"""Programs whose record looks like an illness and which are meant so: nothing is said of them, or nothing is certain."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sick import PLUGINS

from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import CERTAIN, Finding
from distdoctor.recording.recording import Job, RankEnd, Recording
from distdoctor.recording.stacks import ProcessStacks
from distdoctor.recording.trace.events import Exiting, GroupDestroyed
from distdoctor.testing import Script, TraceBuilder, recording
from distdoctor.testing.rank_trace import SECOND, START_NS
from distdoctor.testing.simulation import PEER_GONE, TIMED_OUT
from distdoctor.testing.stacks import frame, in_collective, looked_at, process, rank

CHECKS = [check for check in PLUGINS.checks.values() if check.family == "hang"]
OWNERS = """\
import torch.distributed as dist
def share(mine, theirs, rank):
    for owner in range(2):
        if owner == rank:
            dist.all_reduce(mine)
        else:
            dist.all_reduce(theirs)
"""
IN_ONE_ORDER = """\
import torch.distributed as dist
def share(mine, theirs, names):
    for name in names:
        if name == "mine":
            dist.all_reduce(mine)
        else:
            dist.all_reduce(theirs)
"""
PUBLISHER = """\
import threading
import torch.distributed as dist
def publish(weights):
    load(weights)
    dist.send(weights, 1)
threading.Thread(target=publish, args=(weights,)).start()
"""


def told(job: Recording) -> list[tuple[str, tuple[int, ...]]]:
    return [(finding.code, finding.ranks) for finding in examine(job, CHECKS).findings]


def certain(job: Recording) -> list[Finding]:
    return [finding for finding in examine(job, CHECKS).findings if finding.confidence == CERTAIN]


def in_turns(source: str, op: str, root: bool = False) -> Script:
    """Two ranks that go through two lines in opposite orders."""
    script = recording(ranks=2).source("train.py", source)
    for _ in range(5):
        for owner in range(2):
            script.collective(op, [32], site="train.py:5 share", root=owner if root else None)
            script.instead(1 - owner, site="train.py:7 share")
        script.step()
    return script


@pytest.mark.parametrize("root", [False, True])
def test_what_each_rank_owns_in_turn_goes_through_another_line(root: bool) -> None:
    assert told(in_turns(OWNERS, "broadcast" if root else "all_reduce", root=root).finished()) == []


def test_the_same_lines_in_another_order_of_names_are_told() -> None:
    assert told(in_turns(IN_ONE_ORDER, "all_reduce").finished()) == [("DD107", (0, 1))]


def absent_peer() -> Script:
    """Rank 1 has less to do and leaves; rank 0 looks by a short barrier whether it is there, and goes on without it."""
    script = recording(ranks=2).group("check", [0, 1])
    script.collective("all_reduce", [8], site="train.py:41 train").step()
    return script.exits(1).collective("barrier", group="check", only=0, caught_after=2, site="train.py:50 look")


def test_a_rank_that_goes_on_without_the_one_that_left() -> None:
    script = absent_peer().step(0)

    assert told(script.finished()) == []
    assert told(script.live(silent_for=12)) == []


def test_a_rank_that_fails_for_lack_of_the_one_that_left_is_no_design() -> None:
    assert told(absent_peer().raises(0, TIMED_OUT).finished()) == [("DD109", (1,))]


def test_a_thread_that_beats_until_the_process_ends() -> None:
    script = recording(ranks=2).group("beats", [0, 1])
    for _ in range(4):
        script.collective("all_reduce", [1], group="beats", thread=2, site="train.py:9 beat")
    script.exits(1).collective("all_reduce", [1], group="beats", only=0, asynchronous=True, site="train.py:9 beat")

    assert told(script.exits(0).finished()) == []


def test_an_error_raised_from_a_timeout_is_no_cause() -> None:
    script = recording(ranks=2)
    script.collective("all_reduce", [8], site="train.py:41 train").step().stays(1)
    script.collective("all_reduce", [8], only=0, caught_after=30, site="train.py:41 train")
    job = script.raises(0, "EvaluationFailed: no average", after=[TIMED_OUT]).finished()

    assert [finding.code for finding in examine(job, CHECKS).findings] == ["DD129"]
    assert certain(job) == []


def test_an_error_raised_from_another_connection_is_its_own() -> None:
    refused = "ConnectionRefusedError: [Errno 111] Connection refused"
    script = recording(ranks=2).collective("all_reduce", [8], site="train.py:41 train").step()
    script.raises(0, "OSError: cannot reach the hub", after=[refused])

    assert told(script.finished(survivors="fail")) == [("DD110", (0,))]


@pytest.mark.parametrize("words", [PEER_GONE, ""])
def test_a_rank_that_exits_out_of_a_failed_call_is_no_cause(words: str) -> None:
    """It caught what the call raised, and left by `sys.exit(1)`; without words nobody knows more."""
    script = recording(ranks=3)
    script.collective("all_reduce", [8], site="train.py:41 train").step().stays(1)
    script.collective("all_reduce", [8], only=[0, 2], caught_after=20, site="train.py:41 train").exits([0, 2], code=1)

    assert certain(script.finished()) == []


def test_a_rank_that_exits_with_a_code_and_was_in_no_call_is_the_cause() -> None:
    script = recording(ranks=2).collective("all_reduce", [8], site="train.py:41 train").step()

    assert told(script.exits(0, code=3).finished(survivors="fail")) == [("DD110", (0,))]


def made_again(worlds: dict[int, tuple[int, ...]]) -> Recording:
    """Four ranks that meet once and make new worlds: by rank, the numbers in its new one (() where it leaves). What they sum
    there differs, and in the end they wait for a message."""
    traces, ends = {}, {}
    for number, members in worlds.items():
        log = TraceBuilder(number, world_size=4)
        log.group("0", range(4), at_ns=START_NS)
        log.call("all_reduce", [8], site="train.py:41 train")
        log.note(GroupDestroyed(""))
        if not members:
            log.note(Exiting())
            ends[number] = RankEnd(0, at_ns=log.now)
        else:
            log.group("0", members)
            for _ in range(3):
                log.call("all_reduce", [16 + number % 2], site=f"train.py:{50 + number % 2} train")
            log.call("recv", [8], root=1, site="train.py:60 train", returned_ns=0)
        traces[number] = log.build()
    job = Job(world_size=4, running=True, read_at_ns=START_NS + 5 * SECOND, ends=ends)
    return Recording(job, traces, frozenset({"collectives", "progress"}))


def test_a_smaller_world_whose_ranks_have_other_numbers_needs_nobody_that_left() -> None:
    assert told(made_again({0: (0, 1), 1: (), 2: (0, 1), 3: ()})) == []


def test_two_new_worlds_of_the_same_numbers_are_not_compared() -> None:
    assert told(made_again({0: (0, 1), 1: (0, 1), 2: (0, 1), 3: (0, 1)})) == []


def with_forgotten(rows: slice, events: slice) -> Recording:
    """Two ranks that meet in five lives of the default group, in each with another size; of rank 0 the oldest rows are gone."""
    traces = {}
    for number in range(2):
        log = TraceBuilder(number, world_size=2)
        for life in range(5):
            log.group("0", range(2))
            for _ in range(2):
                log.call("all_reduce", [8 + life], site=f"train.py:{40 + life} train")
        traces[number] = log.build()
    first = traces[0]
    lost = {
        "groups": len(first.groups) - len(first.groups[rows]),
        "events": len(first.events) - len(first.events[events]),
    }
    traces[0] = replace(first, groups=first.groups[rows], events=first.events[events], lost={**first.lost, **lost})
    job = Job(world_size=2, running=True, read_at_ns=START_NS + 5 * SECOND)
    return Recording(job, traces, frozenset({"collectives", "progress"}))


@pytest.mark.parametrize(("rows", "events"), [(slice(None), slice(2, None)), (slice(2, None), slice(None))])
def test_lives_of_a_group_that_the_ring_has_forgotten_are_not_compared(rows: slice, events: slice) -> None:
    assert told(with_forgotten(rows, events)) == []


@pytest.mark.parametrize(("op", "codes"), [("broadcast", []), ("all_reduce", ["DD104"])])
def test_a_mask_that_is_received_as_bytes_reads_the_same_where_nothing_is_added_up(op: str, codes: list[str]) -> None:
    script = recording(ranks=2)
    for _ in range(3):
        script.collective(op, [32], dtype="bool", site="train.py:41 share").instead(1, dtype="uint8")

    assert [code for code, _ in told(script.live())] == codes


@pytest.mark.parametrize(
    ("op", "dtype", "size", "codes"),
    [
        ("broadcast", "int16", 32, []),
        ("broadcast", "uint8", 64, []),
        ("broadcast", "float16", 32, ["DD104"]),
        ("broadcast", "int16", 16, ["DD104"]),  # half of the bytes
        ("all_reduce", "int16", 32, ["DD104"]),
    ],
)
def test_bytes_that_one_side_views_as_small_integers_are_the_same_bytes(
    op: str, dtype: str, size: int, codes: list[str]
) -> None:
    script = recording(ranks=2)
    for _ in range(3):
        script.collective(op, [32], dtype="bfloat16", site="train.py:41 share").instead(1, dtype=dtype, shape=[size])

    assert [code for code, _ in told(script.live())] == codes


@pytest.mark.parametrize(("dtype", "codes"), [("int16", []), ("float16", ["DD113"])])
def test_a_message_may_be_viewed_as_small_integers(dtype: str, codes: list[str]) -> None:
    script = recording(ranks=2)
    for _ in range(3):
        script.send(0, 1, [8], dtype=dtype, site="train.py:41 push").recv(
            1, 0, [8], dtype="bfloat16", site="train.py:51 pull"
        )

    assert [code for code, _ in told(script.live())] == codes


def announced(dtype: str) -> Script:
    script = recording(ranks=2)
    for size in (4, 10, 64):
        script.send(0, 1, [1], dtype=dtype, site="train.py:41 push").recv(
            1, 0, [1], dtype=dtype, site="train.py:51 pull"
        )
        script.send(0, 1, [size], site="train.py:42 push").recv(1, 0, [64], site="train.py:52 pull")
    return script


def test_a_message_whose_size_came_before_it_fits_a_larger_buffer() -> None:
    assert told(announced("int64").finished()) == []


def test_a_smaller_message_that_nothing_announced_is_likely_wrong() -> None:
    assert told(announced("float32").finished()) == [("DD113", (1, 0))]
    assert certain(announced("float32").finished()) == []


def test_a_ring_is_not_proven_while_a_thread_may_be_about_to_send() -> None:
    script = recording(ranks=2).recv(0, 1, [8], site="train.py:9 main").recv(1, 0, [8], site="train.py:9 main")

    assert told(script.live(silent_for=3)) == [("DD114", (0, 1))]
    assert told(script.source("train.py", PUBLISHER).live(silent_for=3)) == []
    assert certain(script.live(silent_for=70)) == []


def test_a_rank_whose_child_process_computes_is_not_stuck() -> None:
    waits = frame("/usr/lib/python3.11/subprocess.py:1264 wait"), frame("train.py:57 evaluate")
    child = process(pid=3001, cpu_share=0.97)

    def seen(*children: ProcessStacks) -> Recording:
        return looked_at(in_collective(0), rank(1, *waits, still=14.0, children=children))

    assert told(seen()) == [("DD116", (1,))]
    assert told(seen(child)) == []
