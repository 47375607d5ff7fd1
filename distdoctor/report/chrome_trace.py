"""The recording as a trace for Perfetto (ui.perfetto.dev) or chrome://tracing: collectives, phases of the steps, memory."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from distdoctor.diagnosis.diagnosis import Diagnosis
from distdoctor.recording.recording import RankTrace

MOST_RANKS = 64  # as many as somebody looks at; a trace of more does not open
CATEGORIES = {"collectives": "collective", "steps": "phase"}  # by the tracks that each rank has
_MEMORY = ("rss", "allocated", "parameters", "gradients", "state")

Event = dict[str, Any]


def render(diagnosis: Diagnosis) -> str:
    """One JSON document in the trace event format. Times are wall clock, microseconds since the first record."""
    logs = list(diagnosis.recording.ranks.values())[:MOST_RANKS] if diagnosis.recording is not None else []
    start = min((_first_ns(log) for log in logs), default=0)
    events = [event for log in logs for event in (_name(log), *_tracks(log, start), *_memory(log, start))]
    about = {
        "argv": list(map(str, diagnosis.job.argv)),
        "findings": [f"{f.code} {f.title}" for f in diagnosis.findings],
    }
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms", "otherData": about}) + "\n"


def _first_ns(log: RankTrace) -> int:
    """The earliest moment that is drawn, on the wall clock."""
    drawn = ((log.calls, "entered_ns"), (log.rows("times"), "forward_ended_ns"), (log.rows("memory"), "at_ns"))
    times = [int(rows[name][rows[name] > 0].min(initial=1 << 62)) for rows, name in drawn if len(rows)]
    return min(times, default=1 << 62) + log.monotonic_to_wall_ns


def _name(log: RankTrace) -> Event:
    return {"ph": "M", "pid": log.rank, "name": "process_name", "args": {"name": f"rank {log.rank} on {log.host}"}}


def _tracks(log: RankTrace, start: int) -> Iterator[Event]:
    """The slices, and what their tracks are called. Whole microseconds: two numbers rounded each for itself could cross."""
    number = 0
    for name, spans in (("collectives", _calls(log)), ("steps", _phases(log))):
        for lane, fitting in enumerate(_lanes(spans), 1):
            number += 1
            words = name if lane == 1 else f"{name} ({lane})"
            yield {"ph": "M", "pid": log.rank, "tid": number, "name": "thread_name", "args": {"name": words}}
            for one in fitting:
                began, ended = ((at + log.monotonic_to_wall_ns - start) // 1000 for at in (one.began, one.ended))
                head = {"ph": "X", "pid": log.rank, "tid": number, "cat": CATEGORIES[name], "name": one.name}
                yield {**head, "ts": began, "dur": ended - began, "args": one.about}


class _Span(NamedTuple):
    """Monotonic nanoseconds."""

    name: str
    began: int
    ended: int
    about: Event


def _lanes(spans: Iterable[_Span]) -> list[list[_Span]]:
    """The spans, with those that cross one that began before them on tracks of their own: Perfetto drops slices that neither lie
    in one another nor apart (`slice_drop_overlapping_complete_event`)."""
    lanes: list[tuple[list[_Span], list[int]]] = []  # and when those end that have not ended yet, the innermost last
    for one in sorted(spans, key=lambda span: (span.began, -span.ended)):
        for _, ends in lanes:
            while ends and ends[-1] <= one.began:
                ends.pop()
        lane = next((lane for lane in lanes if not lane[1] or one.ended <= lane[1][-1]), None)
        if lane is None:
            lane = [], []
            lanes.append(lane)
        lane[0].append(one)
        lane[1].append(one.ended)
    return [fitting for fitting, _ in lanes]


def _calls(log: RankTrace) -> Iterator[_Span]:
    """Each call until it came back; what is asynchronous until it was waited for."""
    last = max((int(row["returned_ns"]) or int(row["entered_ns"]) for row in log.calls), default=0)
    for row in log.calls:
        call = log.call(row)
        state = {} if call.returned_ns else {"state": "has not come back"}
        about = {"group": call.group, "shape": call.shape, "bytes": call.nbytes, "line": str(call.site), **state}
        ended = max(call.returned_ns, int(row["waited_ns"])) or last
        yield _Span(call.words, call.entered_ns, max(ended, call.entered_ns), about)


def _phases(log: RankTrace) -> Iterator[_Span]:
    """Each step, and in it backward and the optimizer where they lay."""
    before = 0
    for row in log.rows("times"):
        at, step = int(row["at_ns"]), int(row["step"])
        if before:
            about = {"data_ms": int(row["data_ns"]) / 1e6, "waited_ms": int(row["waited_ns"]) / 1e6}
            yield _Span(f"step {step}", before, max(at, before), about)
        if row["backward_ended_ns"] > row["forward_ended_ns"] >= before:
            yield _Span("backward", int(row["forward_ended_ns"]), int(row["backward_ended_ns"]), {})
        yield _Span("optimizer", at - int(row["optimizer_ns"]), at, {})
        before = at


def _memory(log: RankTrace, start: int) -> Iterator[Event]:
    for row in log.rows("memory"):
        at = (int(row["at_ns"]) + log.monotonic_to_wall_ns - start) // 1000
        sizes = {name: int(row[name]) for name in _MEMORY if row[name]}
        yield {"ph": "C", "pid": log.rank, "cat": "memory", "name": "bytes", "ts": at, "args": sizes}
