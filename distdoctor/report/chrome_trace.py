"""The recording as a trace for Perfetto (ui.perfetto.dev) or chrome://tracing: collectives, phases of the steps, memory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from distdoctor.diagnosis.diagnosis import Diagnosis
from distdoctor.recording.recording import RankTrace

MOST_RANKS = 64  # as many as somebody looks at; a trace of more does not open
COLLECTIVES, PHASES = 1, 2  # what the threads of a rank stand for
CATEGORIES = {COLLECTIVES: "collective", PHASES: "phase"}
_MEMORY = ("rss", "allocated", "parameters", "gradients", "state")

Event = dict[str, Any]


def render(diagnosis: Diagnosis) -> str:
    """One JSON document in the trace event format. Times are wall clock, microseconds since the first record."""
    logs = list(diagnosis.recording.ranks.values())[:MOST_RANKS] if diagnosis.recording is not None else []
    start = min((_first_ns(log) for log in logs), default=0)
    events = [
        event
        for log in logs
        for event in (*_names(log), *_calls(log, start), *_phases(log, start), *_memory(log, start))
    ]
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


def _names(log: RankTrace) -> Iterator[Event]:
    yield {"ph": "M", "pid": log.rank, "name": "process_name", "args": {"name": f"rank {log.rank} on {log.host}"}}
    for thread, words in ((COLLECTIVES, "collectives"), (PHASES, "steps")):
        yield {"ph": "M", "pid": log.rank, "tid": thread, "name": "thread_name", "args": {"name": words}}


def _slice(log: RankTrace, thread: int, name: str, began: float, ended: float, start: int, **about: Any) -> Event:
    at = (began + log.monotonic_to_wall_ns - start) / 1e3
    return {
        "ph": "X",
        "pid": log.rank,
        "tid": thread,
        "cat": CATEGORIES[thread],
        "name": name,
        "ts": at,
        "dur": max(ended - began, 0) / 1e3,
        "args": about,
    }


def _calls(log: RankTrace, start: int) -> Iterator[Event]:
    last = max((int(row["returned_ns"]) or int(row["entered_ns"]) for row in log.calls), default=0)
    for row in log.calls:
        call = log.call(row)
        state = {} if call.returned_ns else {"state": "has not come back"}
        about = {"group": call.group, "shape": call.shape, "bytes": call.nbytes, "line": str(call.site), **state}
        yield _slice(log, COLLECTIVES, call.words, call.entered_ns, call.returned_ns or last, start, **about)


def _phases(log: RankTrace, start: int) -> Iterator[Event]:
    """Each step, and in it backward and the optimizer where they lay."""
    before = 0
    for row in log.rows("times"):
        at, step = int(row["at_ns"]), int(row["step"])
        if before:
            about = {"data_ms": int(row["data_ns"]) / 1e6, "waited_ms": int(row["waited_ns"]) / 1e6}
            yield _slice(log, PHASES, f"step {step}", before, at, start, **about)
        if row["backward_ended_ns"] > row["forward_ended_ns"] >= before:
            yield _slice(log, PHASES, "backward", int(row["forward_ended_ns"]), int(row["backward_ended_ns"]), start)
        yield _slice(log, PHASES, "optimizer", at - int(row["optimizer_ns"]), at, start)
        before = at


def _memory(log: RankTrace, start: int) -> Iterator[Event]:
    for row in log.rows("memory"):
        at = (int(row["at_ns"]) + log.monotonic_to_wall_ns - start) / 1e3
        sizes = {name: int(row[name]) for name in _MEMORY if row[name]}
        yield {"ph": "C", "pid": log.rank, "cat": "memory", "name": "bytes", "ts": at, "args": sizes}
