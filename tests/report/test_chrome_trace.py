"""The trace for Perfetto: slices of a track lie in one another or apart, or trace_processor drops them."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from sick import PLUGINS, diagnosis_of

from distdoctor.diagnosis.diagnosis import Diagnosis
from distdoctor.recording.trace.layout import CallFlag
from distdoctor.report import chrome_trace
from distdoctor.testing import recording

Event = dict[str, Any]
MOMENT = 1_000_000_000_000  # nanoseconds


def slices(diagnosis: Diagnosis) -> dict[tuple[int, int], list[Event]]:
    """By rank and track."""
    found: dict[tuple[int, int], list[Event]] = defaultdict(list)
    for event in json.loads(chrome_trace.render(diagnosis))["traceEvents"]:
        if event["ph"] == "X":
            found[event["pid"], event["tid"]].append(event)
    return found


def crossing(track: Iterable[Event]) -> Iterator[tuple[str, str]]:
    """The pairs of which one begins within the other and ends after it, as `SliceTracker::MaybeCloseStack` has it."""
    stack: list[Event] = []
    for one in sorted(track, key=lambda event: (event["ts"], -event["dur"])):
        while stack and stack[-1]["ts"] + stack[-1]["dur"] <= one["ts"]:
            stack.pop()
        if stack and one["ts"] + one["dur"] > stack[-1]["ts"] + stack[-1]["dur"]:
            yield stack[-1]["name"], one["name"]
        stack.append(one)


@pytest.mark.parametrize("code", [code for code in PLUGINS.checks if code.startswith("DD")])
def test_no_slice_of_any_recording_crosses_another_on_its_track(code: str) -> None:
    assert [pair for track in slices(diagnosis_of(code)).values() for pair in crossing(track)] == []


def test_calls_under_way_at_the_same_time_are_on_tracks_of_their_own() -> None:
    script = recording(ranks=1).collective("all_reduce").collective("all_reduce").collective("barrier").step()
    made = script.live()
    for number, row in enumerate(made.ranks[0].calls):
        row["entered_ns"] = row["returned_ns"] = MOMENT + number * 1_500
        if number < 2:  # asynchronous, and waited for when the next one has been issued
            row["flags"], row["waited_ns"] = CallFlag.ASYNC, MOMENT + 2_000 + number * 1_500

    (first, second) = slices(Diagnosis(made.job, recording=made, world_size=1)).values()

    assert [(one["name"], one["ts"], one["dur"]) for one in first] == [("all_reduce #1", 0, 2), ("barrier #3", 3, 0)]
    assert [(one["name"], one["ts"], one["dur"]) for one in second] == [("all_reduce #2", 1, 2)]
