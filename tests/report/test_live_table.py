"""What `watch` shows of a running job."""

from __future__ import annotations

from dataclasses import replace

from distdoctor.diagnosis.speed.progress_now import ProgressNow
from distdoctor.report.live_table import live_table
from distdoctor.testing import recording


def test_ranks_that_wait_are_in_their_call_and_the_one_that_they_wait_for_is_named() -> None:
    script = recording(ranks=3)
    for number in range(4):
        script.compute(0.5).collective("all_reduce", [8], site="/job/train.py:41 step")
        script.skipped_by(2 if number == 3 else ())
        script.step(() if number == 3 else None)

    now = ProgressNow.of(script.live(silent_for=7))
    table = live_table(now)

    assert [(one.rank, one.step, one.in_call, one.awaits) for one in now.ranks] == [
        (0, 3, True, (2,)),
        (1, 3, True, (2,)),
        (2, 3, False, ()),
    ]
    assert now.awaited == (2,)
    assert [str(row[5]).partition(" for ")[0] for row in table.rows] == [
        "all_reduce #4 at train.py:41",
        "all_reduce #4 at train.py:41",
        "past all_reduce #3 at train.py:41",
    ]
    assert table.notes == ("waiting for rank 2 for 7 s",)


def test_of_a_job_that_is_over_nobody_waits() -> None:
    script = recording(ranks=2).collective("all_reduce", [8], site="/job/train.py:41 step").skipped_by(1)
    over = script.live(silent_for=3)

    now = ProgressNow.of(replace(over, job=replace(over.job, running=False, read_at_ns=0)))

    assert (now.awaited, [one.in_call for one in now.ranks]) == ((), [False, False])


def test_many_equal_ranks_share_a_line() -> None:
    script = recording(ranks=64)
    for _ in range(3):
        script.compute(0.1).collective("all_reduce", [8], site="/job/train.py:41 step").step()
    script.collective("barrier", site="/job/train.py:50 save").skipped_by(9)

    now = ProgressNow.of(script.live(silent_for=2))

    assert [row[0] for row in live_table(now).rows] == ["9", "0-8,10-63"]
    assert [row[0] for row in live_table(now, most=1).rows] == ["9"]  # who is behind comes first
