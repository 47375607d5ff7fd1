"""Since when a rank has done nothing: whoever polls a store does nothing, however often its event is written."""

from __future__ import annotations

import pytest

from distdoctor.diagnosis.facts.timeline import Timeline
from distdoctor.recording.trace.events import Exiting, KeyAwaited, KeySet, TraceEvent
from distdoctor.testing.rank_trace import TraceBuilder

SECOND = 1_000_000_000


def last_of(*events: TraceEvent) -> int:
    """The last sign of life, in seconds, of a rank with a step at 5 s and these events at 10, 20, ... s."""
    log = TraceBuilder(0, world_size=1)
    log.step(at_ns=5 * SECOND)
    for number, event in enumerate(events, 1):
        log.note(event, at_ns=10 * number * SECOND)
    return Timeline(log.build()).last_ns // SECOND


@pytest.mark.parametrize("asks", [KeySet(("arrived",)), KeyAwaited(("arrived",), True)])
def test_asking_a_store_is_none(asks: TraceEvent) -> None:
    assert last_of(asks) == 5
    assert last_of(Exiting(False), asks, asks) == 10


def test_other_events_are() -> None:
    assert last_of(KeySet(("arrived",)), Exiting(False)) == 20
