"""What was seen of a hang while its processes were there stays in the report after their end."""

from __future__ import annotations

from dataclasses import replace

from distdoctor import plugins
from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.said_live import with_what_stood
from distdoctor.recording.stacks import Link
from distdoctor.testing.stacks import in_collective, looked_at
from distdoctor_checks.hang import stuck_in_backend

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
