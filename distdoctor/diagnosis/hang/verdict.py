"""What happened to the job's communication: the facts that checks on hangs ask for, computed once. Which check explains an
incident is for the checks to say.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

from distdoctor.diagnosis.finding import CERTAIN, POSSIBLE
from distdoctor.diagnosis.hang.call_chains import Parted
from distdoctor.diagnosis.hang.crossed_threads import crossed_calls
from distdoctor.diagnosis.hang.decision import decision_of
from distdoctor.diagnosis.hang.ending import end_of
from distdoctor.diagnosis.hang.hang_facts import HangFacts
from distdoctor.diagnosis.hang.incident import Incident
from distdoctor.diagnosis.hang.kinds import IncidentKind
from distdoctor.diagnosis.hang.root_cause import find_incidents
from distdoctor.diagnosis.hang.standstill import stalls
from distdoctor.diagnosis.source.decision import Decision
from distdoctor.recording.recording import Call, Recording


@dataclass(frozen=True)
class Verdict(HangFacts):
    """The fact that every check on hangs asks for: what is known, and the incidents that were found in it."""

    streams: ClassVar[frozenset[str]] = frozenset({"collectives", "progress"})
    incidents: tuple[Incident, ...] = field(default=())

    @classmethod
    def of(cls, recording: Recording) -> Self:
        known = super().of(recording)
        completed = (_completed(known, number, one) for number, one in enumerate(find_incidents(known)))
        return replace(known, incidents=tuple(completed))

    def of_kind(self, *kinds: IncidentKind) -> Iterator[Incident]:
        """The incidents of these kinds."""
        return (incident for incident in self.incidents if incident.kind in kinds)

    def unpaired(self, receive: Call) -> tuple[Call, ...]:
        """What the rank that a receive awaits has sent, or waits for, instead."""
        return tuple((*self.pairs.unreceived_of(receive), *self.pairs.unsent_to(receive))[:4])

    def mistagged(self, incident: Incident) -> tuple[Call, Call] | None:
        """A receive of a ring, and the send of the awaited rank that it would take if it bore its tag."""
        pairs = ((wait.call, self.pairs.mistagged(wait.call)) for wait in incident.cycle)
        return next(((call, sent) for call, sent in pairs if sent is not None), None)

    def waiting_seconds(self, call: Call) -> float:
        """For how long a call has been open; 0 when it is not, or when nobody was there to see."""
        now = 0 if call.returned_ns else self.facts.now_ns(self.timeline(call.rank))
        return max(0.0, (now - call.entered_ns) / 1e9) if now else 0.0


def _completed(known: HangFacts, number: int, one: Incident) -> Incident:
    """The incident with what follows from it: that ranks wait for ever may be certain where it is not who is the odd one."""
    confidence = one.confidence if one.sides is CERTAIN or one.confidence is POSSIBLE else one.sides
    stands = stalls(one, known.facts, known.endings, known.deadlock)
    decision = decision_of(known.facts, known.pairs, one)
    callers = Parted.of(known.facts, one.odd, one.usual).by_callers if one.odd is not None else ()
    one = one.decided_by(None) if _is_beside(one, decision) else one
    told = replace(one, stalls=stands, key=_key(number, one), decision=decision, callers=callers, confidence=confidence)
    told = replace(told, in_place=one.in_place and not _left_a_frameworks_loop(told))
    return _with_hint(replace(told, crossed=crossed_calls(known.facts, one)))


def _is_beside(incident: Incident, decision: Decision | None) -> bool:
    """Whether the condition that is around the odd call asks nothing about the rank, and the ranks parted in another function:
    whoever was led there met it."""
    guard, at = incident.guard, incident.guard_at
    if guard is None or guard.on_rank or decision is None:
        return False
    return (decision.site.path, decision.site.function) != (at.path, at.function)


def _left_a_frameworks_loop(incident: Incident) -> bool:
    """Whether ranks are in two calls of one operation, to which one line of the user's leads, and one side has most likely had
    the framework's loop stopped alone: then it is not the arguments that are wrong."""
    decision, odd, usual = incident.decision, incident.odd, incident.usual
    stops = decision is not None and decision.stops_a_framework
    return stops and odd is not None and usual is not None and odd.op is usual.op


def _with_hint(incident: Incident) -> Incident:
    """That the job stands still may be proven; whose fault it is, by a name in the source, is at most likely."""
    return replace(incident, confidence=incident.likely) if incident.hint else incident


def _key(number: int, incident: Incident) -> str:
    failed = incident.ending if incident.kind is IncidentKind.FAILED else None
    return end_of(failed.rank) if failed is not None else f"incident {number}"
