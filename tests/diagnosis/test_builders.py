"""Recordings made by hand are what the trace reader would have read."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np

from distdoctor.probe.writer import TraceWriter
from distdoctor.recording.trace.events import InitBegun
from distdoctor.recording.trace.layout import (
    LONGEST_TEXT,
    CallFlag,
    Op,
    ReduceOp,
    extend,
    ranks_of,
    ranks_text,
)
from distdoctor.recording.trace.reader import read_trace
from distdoctor.recording.trace.run_folder import log_of
from distdoctor.testing import TraceBuilder, build_log, recording


def test_a_built_log_has_the_sections_and_types_of_a_trace(tmp_path: Path) -> None:
    trace = TraceWriter(str(tmp_path), 0, 2, 0, 0)
    trace.note(InitBegun("gloo"))
    read = log_of(read_trace(next(tmp_path.iterdir())))
    built = build_log(0, world_size=2, calls=[{"op": "barrier"}], steps=1)

    for name in ("calls", "groups", "steps", "events", "passes", "blocks"):
        assert getattr(built, name).dtype == getattr(read, name).dtype, name


def test_numbers_and_digests_run_per_group_as_in_the_probe() -> None:
    log = TraceBuilder(0, world_size=2)
    log.call("all_reduce", [4], site="a.py:1 f")
    log.call("barrier", group="other", site="a.py:2 f")
    log.call("all_reduce", [8], site="a.py:3 f")
    log.call("send", [8], root=1)
    rows = log.build().calls

    assert rows["seq"].tolist() == [1, 2, 3, 4]
    assert rows["number"].tolist() == [1, 1, 2, 1]
    assert int(rows[2]["prefix"]) == extend(extend(0, int(rows[0]["signature"])), int(rows[2]["signature"]))
    assert int(rows[3]["prefix"]) == int(rows[2]["prefix"])


def test_a_decoded_call_says_what_was_built() -> None:
    log = build_log(
        3,
        world_size=4,
        calls=[
            {"op": "reduce", "shape": [2, 3], "dtype": "bfloat16", "reduce_op": "max", "root": 1, "asynchronous": True}
        ],
    )
    call = log.call(log.calls[0])

    assert (call.rank, call.op, call.dtype, call.shape, call.root) == (3, Op.REDUCE, "bfloat16", "[2, 3]", 1)
    assert (call.reduce_op, call.flags, call.is_async) == (ReduceOp.MAX, CallFlag.ASYNC, True)


def test_a_ring_that_forgot_keeps_the_newest_calls_and_their_digests() -> None:
    log = TraceBuilder(0, world_size=2)
    for _ in range(10):
        log.call("barrier")
    whole, short = log.build(), log.build(keep={"calls": 3})

    assert short.calls["number"].tolist() == [8, 9, 10]
    assert short.lost["calls"] == 7
    assert short.calls["prefix"].tolist() == whole.calls["prefix"][7:].tolist()


def test_a_script_blocks_where_torch_would() -> None:
    script = recording(ranks=2).collective("all_reduce", [4]).collective("barrier").skipped_by(1).step()
    hung = script.live()

    assert [len(log.calls) for log in hung.ranks.values()] == [2, 1]
    assert hung.ranks[0].calls["returned_ns"][-1] == 0
    assert (len(hung.ranks[0].steps), len(hung.ranks[1].steps)) == (0, 1)


def test_asynchronous_calls_return_at_once_and_waiting_leaves_no_trace() -> None:
    script = recording(ranks=2).collective("all_reduce", [4], asynchronous=True, only=0).wait().step()
    hung = script.live()

    assert hung.ranks[0].calls["returned_ns"][0] > 0
    assert (len(hung.ranks[0].steps), len(hung.ranks[1].steps)) == (0, 1)


def test_receives_wait_for_their_own_tag() -> None:
    script = recording(ranks=2).send(0, 1, tag=1).recv(1, 0, tag=2)

    assert script.live().ranks[1].calls["returned_ns"][0] == 0


def test_every_moment_of_a_film_is_a_prefix_of_the_next() -> None:
    script = recording(ranks=3)
    for _ in range(3):
        script.collective("all_reduce", [4]).step()
    film = script.film(random.Random(1))
    before = film.read(film.moments[0])
    for moment in film.moments[1:]:
        now = film.read(moment)
        for rank, log in now.ranks.items():
            earlier = before.ranks[rank]
            assert np.array_equal(log.calls["seq"][: len(earlier.calls)], earlier.calls["seq"])
            assert int(log.groups[0]["count"]) == len(log.calls)
            if len(log.calls):
                assert int(log.groups[0]["prefix"]) == int(log.calls[-1]["prefix"])
        before = now


def test_ranks_of_another_host_have_clocks_of_their_own() -> None:
    script = recording(ranks=2).host("far", 1).collective("barrier")
    near, far = script.live().ranks.values()

    assert (near.host, far.host) == ("node0", "far")
    assert near.monotonic_to_wall_ns != far.monotonic_to_wall_ns


def test_a_finished_job_says_how_each_rank_ended() -> None:
    script = recording(ranks=3).collective("barrier").raises(1, "ValueError: no").collective("barrier")
    killed, failed = script.finished().job, script.finished(survivors="fail").job

    assert {r: (e.exit_code, e.signal, e.ended_by_launcher) for r, e in killed.ends.items()} == {
        0: (None, 15, True),
        1: (1, 0, False),
        2: (None, 15, True),
    }
    assert [end.exit_code for end in failed.ends.values()] == [1, 1, 1]


def test_the_members_of_a_group_of_ten_thousand_fit_into_a_text() -> None:
    ranks = (*range(5000), *range(6000, 12000), 7)
    text = ranks_text(ranks)

    assert len(text) < LONGEST_TEXT
    assert ranks_of(text) == ranks
    assert ranks_text((0, 1, 5)) == "0,1,5"
