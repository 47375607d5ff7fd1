"""When a job began."""

from __future__ import annotations

import datetime

from distdoctor.recording.recording import Recording


def began(recording: Recording | None) -> datetime.datetime | None:
    """When the first rank noted anything, in UTC, as its host's clock had it; None where no rank did."""
    logs = recording.ranks.values() if recording is not None else ()
    times = [
        int(log.events["at_ns"][0]) + log.monotonic_to_wall_ns
        for log in logs
        if len(log.events) and log.monotonic_to_wall_ns
    ]
    return datetime.datetime.fromtimestamp(min(times) // 1_000_000_000, datetime.UTC) if times else None
