"""What was seen of a hang while its processes were there stays in the report after their end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from distdoctor import plugins
from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.said_live import SaidLive, with_what_stood
from distdoctor.recording.seen_live import SeenLive
from distdoctor.recording.stacks import Link
from distdoctor.testing import recording
from distdoctor.testing.stacks import in_collective, looked_at
from distdoctor_checks.hang import stuck_in_backend, stuck_in_user_code

PLUGINS = plugins.load()
CHECKS = [check for code, check in PLUGINS.checks.items() if code.startswith("DD1")]


def test_a_dead_connection_is_told_after_the_end_as_it_was_told_live() -> None:
    jammed = stuck_in_backend.sick()
    links = (Link(1, "10.0.0.2:4711", 210_000, 7),)
    stacks = looked_at(in_collective(0, links=links), in_collective(1), in_collective(2)).stacks
    live = examine(replace(jammed, stacks=stacks), CHECKS, PLUGINS.remedies, live=True)
    afterwards = examine(jammed, CHECKS, PLUGINS.remedies)

    told = with_what_stood(afterwards, live.findings, PLUGINS.checks)

    assert [finding.code for finding in afterwards.findings] == ["DD122"]
    assert [(finding.code, finding.title.partition(" is dead")[1]) for finding in told.findings] == [
        ("DD122", " is dead")
    ]


def test_why_a_rank_came_late_is_one_finding_after_the_timeout_that_ended_the_job_too() -> None:
    live = examine(stuck_in_user_code.sick(), CHECKS, PLUGINS.remedies, live=True)
    script = recording(ranks=2).collective("all_reduce", [8], site="train.py:41 train").step().stays(1)
    script.collective("all_reduce", [8], only=0, caught_after=30, site="train.py:41 train")
    gave_up = "torch.distributed.DistBackendError: timed out waiting 30000ms for recv operation to complete"
    ended = script.raises(0, gave_up, site="train.py:41 train").finished()
    afterwards = examine(ended, CHECKS, PLUGINS.remedies)
    assert [finding.code for finding in afterwards.findings] == ["DD129"]
    assert live.findings[0].ranks == afterwards.findings[0].ranks == (1,)

    (told,) = with_what_stood(afterwards, live.findings, PLUGINS.checks).findings

    assert told.code == "DD116"
    assert told.prescriptions == (*live.findings[0].prescriptions, *afterwards.findings[0].prescriptions)


@pytest.mark.parametrize("goes_on", [False, True])
def test_where_nobody_saw_the_end_what_stood_is_refuted_by_what_the_ranks_did_later(goes_on: bool) -> None:
    """The launcher was killed, and its ranks may have gone on."""
    script = recording(ranks=2).collective("all_reduce", [8], site="train.py:41 train").step()
    if goes_on:
        script.collective("all_reduce", [8], site="train.py:41 train").step()
    left = script.finished(survivors="left")
    left = replace(left, job=replace(left.job, exit_code=None, ends={}))
    first = min(int(log.calls[0]["returned_ns"]) + log.monotonic_to_wall_ns for log in left.ranks.values())
    live = examine(stuck_in_user_code.sick(), CHECKS, PLUGINS.remedies, live=True)
    said = SaidLive(stood=live.findings, leads=True)
    wall_ns = first + 1 if goes_on else first + 10**12

    found = SaidLive.of(replace(left, seen_live=(SeenLive("host-1.json", 0, wall_ns, said=said.as_values()),)))

    assert found is not None
    assert [one.code for one in found.stood] == ([] if goes_on else ["DD116"])
    assert found.leads is not goes_on
