"""Jobs that hang for one reason and show the signs of another."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sick import PLUGINS

from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import CERTAIN
from distdoctor.recording.recording import Job, Recording
from distdoctor.recording.trace.events import GroupDestroyed, InitBegun, InitDone
from distdoctor.testing import TraceBuilder, recording
from distdoctor.testing.rank_trace import SECOND, START_NS

CHECKS = [check for check in PLUGINS.checks.values() if check.family == "hang"]


def told(job: Recording) -> list[tuple[str, tuple[int, ...], str]]:
    return [(finding.code, finding.ranks, str(finding.confidence)) for finding in examine(job, CHECKS).findings]


def left_out(ranks: int, steps: bool = True) -> Recording:
    """Gradients that C++ reduces and a loss that the program does, in turn; rank 0 leaves out one of the losses."""
    script = recording(ranks)
    for turn in range(6):
        script.collective("all_reduce", [100], native=True, site="train.py:33 train")
        script.collective("all_reduce", [1], site="train.py:35 log").skipped_by(0 if turn == 3 else ())
        if steps:
            script.step()
    return script.live()


@pytest.mark.parametrize("steps", [True, False])
def test_a_call_that_was_left_out_is_not_swapped_with_that_of_the_next_turn(steps: bool) -> None:
    assert told(left_out(3, steps)) == [("DD101", (0,), str(CERTAIN))]


def test_calls_of_one_turn_that_come_in_the_other_order_are_swapped() -> None:
    script = recording(ranks=3)
    for turn in range(4):
        script.collective("all_reduce", [100], native=True, site="train.py:33 train")
        script.collective("all_reduce", [1], native=True, site="train.py:35 train").swapped_by(0 if turn == 3 else ())
        script.step()

    assert told(script.live()) == [("DD107", (0,), str(CERTAIN))]


def met_again(world: int) -> Recording:
    """Two ranks that have left a group and are inside init_process_group once more, for a world of so many."""
    traces = {}
    for number in range(2):
        log = TraceBuilder(number, world_size=2)
        for life in range(2):
            log.note(InitBegun("gloo", "env://", world, number), site="train.py:5 main")
            if not life:
                log.note(InitDone(2))
                log.call("all_reduce", [8], site="train.py:9 main")
                log.note(GroupDestroyed(""))
        traces[number] = log.build()
    job = Job(world_size=2, running=True, read_at_ns=START_NS + 45 * SECOND)
    return Recording(job, traces, frozenset({"collectives", "progress"}))


def test_ranks_that_do_not_meet_a_second_time_are_told_where_all_of_them_are_there() -> None:
    assert told(met_again(2)) == [("DD118", (0, 1), "likely")]
    (finding,) = examine(met_again(2), CHECKS).findings
    assert (
        finding.title == "have all been in init_process_group for 45 s, which is not their first: it does not complete"
    )


@pytest.mark.parametrize(("line", "library"), [("trainer.train()", True), ("dist.all_reduce(total)", False)])
def test_a_tensor_that_only_a_library_has_is_not_to_be_converted_by_the_user(line: str, library: bool) -> None:
    """A rank that stops early is at another call of the trainer, which all ranks are in at one line of theirs."""
    script = recording(ranks=3)
    for _ in range(4):
        script.collective("all_reduce", [1], dtype="int64", site="train.py:2 main").step()
    script.collective("all_reduce", [1], dtype="int64", site="train.py:2 main").instead(0, dtype="float32")
    job = replace(script.live(), sources={"/job/train.py": f"def main():\n    {line}\n"})

    (finding,) = examine(job, CHECKS).findings

    assert (finding.code, finding.ranks) == ("DD104", (0,))
    change = finding.prescriptions[0].change
    assert change.startswith(
        "look for what rank 0 alone may decide inside `trainer.train()`" if library else "convert before"
    )


@pytest.mark.parametrize(("elsewhere", "ranks"), [((0,), (0,)), ((0, 1), (0, 1))])
def test_who_asks_at_another_port_than_the_launchers_waits_for_nobody(
    elsewhere: tuple[int, ...], ranks: tuple[int, ...]
) -> None:
    traces = {}
    for number in range(2):
        log, port = TraceBuilder(number, world_size=2), 41000 if number in elsewhere else 0
        address = "localhost:29533" if port else "localhost:41000"
        log.note(InitBegun("gloo", address, 2, number, port, 2), site="train.py:5 main")
        traces[number] = log.build()
    job = Job(world_size=2, running=True, read_at_ns=START_NS + 15 * SECOND)

    (finding,) = examine(Recording(job, traces, frozenset({"collectives", "progress"})), CHECKS).findings

    assert (finding.code, finding.ranks) == ("DD118", ranks)
    assert "for a store at localhost:29533 that nobody holds: torchrun's is at port 41000" in finding.title
    assert finding.prescriptions[0].change.startswith("leave MASTER_ADDR and MASTER_PORT")
