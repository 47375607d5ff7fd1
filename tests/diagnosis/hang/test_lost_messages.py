"""What was sent and never received is told when every rank has ended in order, and not before."""

from __future__ import annotations

from sick import PLUGINS

from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import LIKELY, Stalls
from distdoctor.recording.recording import Recording
from distdoctor.testing import recording
from distdoctor.testing.script import Script

CHECKS = [check for check in PLUGINS.checks.values() if check.family == "hang"]


def told(job: Recording) -> list[tuple[str, tuple[int, ...]]]:
    return [(finding.code, finding.ranks) for finding in examine(job, CHECKS).findings]


def sends(count: int, received: int, **more: int) -> Script:
    script = recording(ranks=3)
    for _ in range(count):
        script.send(0, 1, [8], site="train.py:41 produce", **more)
    for _ in range(received):
        script.recv(1, 0, [8], site="train.py:43 consume", **more)
    return script.collective("barrier", site="train.py:50 main")


def test_a_message_that_nobody_received() -> None:
    [finding] = examine(sends(1, 0, tag=7).finished(), CHECKS).findings
    assert (finding.code, finding.ranks, finding.confidence, finding.stalls) == ("DD113", (0, 1), LIKELY, Stalls.NO)
    assert finding.place.line == 41


def test_several_behind_those_that_arrived() -> None:
    assert told(sends(5, 3).finished()) == [("DD113", (0, 1))]


def test_a_receive_with_another_tag() -> None:
    script = recording(ranks=2).send(0, 1, [8], tag=1, site="train.py:41 produce")
    script.recv(1, 0, [8], tag=2, asynchronous=True, site="train.py:43 consume")
    assert told(script.finished()) == [("DD113", (0, 1))]


def test_the_last_send_of_a_loop_is_fine() -> None:
    assert told(sends(4, 3).finished()) == []


def test_a_job_that_runs_may_still_receive() -> None:
    assert told(sends(2, 0).live(silent_for=3)) == []


def test_a_rank_that_was_not_seen_may_have_received() -> None:
    assert told(sends(2, 0).unrecorded(1).finished()) == []


def test_a_rank_that_receives_from_anybody() -> None:
    script = recording(ranks=2)
    for _ in range(3):
        script.send(0, 1, [8], site="train.py:41 produce")
    for _ in range(3):
        script.recv(1, -1, [8], site="train.py:43 consume")
    assert told(script.finished()) == []
