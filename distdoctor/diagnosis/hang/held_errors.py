"""Which rank of an incident waits in a collective while an exception of its own is on its way out, and nobody sees it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from distdoctor.diagnosis.hang.incident import Incident
from distdoctor.diagnosis.hang.verdict import Verdict
from distdoctor.recording.recording import Call
from distdoctor.recording.trace.events import ErrorHeldBack

MOST_CALLS = 16  # in spite of one exception: who makes more of them goes on with his program in a handler


@dataclass(frozen=True)
class HeldError:
    """`calls` of ranks that were handling an exception when they issued them, `errors` by rank, and those of the `others`."""

    calls: tuple[Call, ...]
    errors: dict[int, ErrorHeldBack]
    others: tuple[Call, ...]

    @property
    def first(self) -> ErrorHeldBack:
        return self.errors[self.calls[0].rank]


def held_error(verdict: Verdict, incident: Incident) -> HeldError | None:
    """None where every rank of the incident handles one, or none does. Calls of others may have come back: their handles wait."""
    calls = {(call.rank, call.seq): call for call in _calls(incident)}
    errors = {call.rank: error for call in calls.values() if (error := _held(verdict, call)) is not None}
    own = tuple(call for call in calls.values() if call.rank in errors)
    others = tuple(call for call in calls.values() if call.rank not in errors)
    return HeldError(own, errors, others) if own and others else None


def _held(verdict: Verdict, call: Call) -> ErrorHeldBack | None:
    timeline = verdict.facts.timelines.get(call.rank)
    noted = timeline.log.noted(ErrorHeldBack) if timeline is not None and not call.returned_ns else ()
    return next((one for one in noted if one.call == call.seq and one.calls <= MOST_CALLS), None)


def _calls(incident: Incident) -> Iterator[Call]:
    """Every call that somebody waits in, or was found in instead of another one."""
    if incident.divergence is not None:
        yield from (call for variant in incident.divergence.variants for call in variant.calls)
    yield from (call for call in (incident.odd, incident.usual, *(incident.pair or ())) if call is not None)
    yield from (call for wait in (*incident.waiting, *incident.cycle) for call in wait.calls)
