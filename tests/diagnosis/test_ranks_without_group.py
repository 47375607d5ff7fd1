"""Ranks that train and never make a process group are not called healthy: nothing that they do together can be looked at."""

from __future__ import annotations

import pytest
from sick import PLUGINS

from distdoctor.diagnosis.examination import examine
from distdoctor.recording.recording import Job, Recording
from distdoctor.recording.trace.layout import STREAMS
from distdoctor.report.verdict import verdict
from distdoctor.testing.rank_trace import TraceBuilder


@pytest.mark.parametrize(
    ("ranks", "grouped", "streams", "silent"),
    [
        (2, False, STREAMS, False),
        (2, True, STREAMS, True),
        (1, False, STREAMS, True),
        (2, False, STREAMS - {"collectives"}, True),  # what groups there were nobody recorded
    ],
)
def test_ranks_that_train_by_themselves_are_left_open(
    ranks: int, grouped: bool, streams: frozenset[str], silent: bool
) -> None:
    logs = [TraceBuilder(rank, world_size=ranks) for rank in range(ranks)]
    for log in logs:
        if grouped:
            log.group("0", range(ranks))
        log.step()
    recording = Recording(Job(world_size=ranks), {log.rank: log.build() for log in logs}, streams)
    diagnosis = examine(recording, list(PLUGINS.checks.values()))

    assert bool(diagnosis.left_open) is not silent
    assert silent or not diagnosis.healthy
    assert silent or verdict(diagnosis).startswith(
        "nothing found, and this is not answered: ranks 0-1 made no process group"
    )
