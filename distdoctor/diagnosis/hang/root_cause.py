"""Which of all that happened was the cause.

Whatever parts first in time is the cause: a group whose members issue different calls, a rank that fails or leaves while
others need it, a ring of waits. All that comes later is a consequence and no incident. What hangs nobody (another reduction,
swapped calls of equal size) is an incident of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from distdoctor.diagnosis.finding import CERTAIN, LIKELY, POSSIBLE
from distdoctor.diagnosis.hang.alignment import REDUCTION
from distdoctor.diagnosis.hang.ending import RAISED, failures
from distdoctor.diagnosis.hang.group_making import named_apart
from distdoctor.diagnosis.hang.hang_facts import HangFacts
from distdoctor.diagnosis.hang.incident import Incident
from distdoctor.diagnosis.hang.incidents.diverged import judge_divergence
from distdoctor.diagnosis.hang.incidents.failed import judge_echoes, judge_failure
from distdoctor.diagnosis.hang.incidents.left import find_late_crashes, find_leavers
from distdoctor.diagnosis.hang.incidents.messages import find_unreceived, judge_misfit
from distdoctor.diagnosis.hang.incidents.new_group import judge_named_apart, judge_passed_by
from distdoctor.diagnosis.hang.incidents.ring import find_rings_in_dumps, judge_ring
from distdoctor.diagnosis.hang.incidents.silent import judge_silence
from distdoctor.diagnosis.hang.incidents.swapped import judge_swap
from distdoctor.diagnosis.hang.kinds import KINDS, IncidentKind
from distdoctor.diagnosis.hang.program import LAST_CALLS
from distdoctor.diagnosis.hang.silence import silence

_OF_WHAT_WAS_CALLED = (IncidentKind.DIVERGED, IncidentKind.SWAPPED)


def find_incidents(known: HangFacts) -> Iterator[Incident]:
    """The cause of what stopped the job, and what nobody was stopped by."""
    silent = [d for d in known.divergences if d.differs == REDUCTION]
    for parted in silent:
        yield judge_divergence(known, parted)
    causes = sorted(_causes(known), key=lambda one: (one.at_ns or 1 << 63, KINDS.index(one.kind), one.ranks))
    causes = [_as_dumps_tell(known, one) for one in causes]
    apart = named_apart(known.facts)
    if apart is not None and _follows(known, causes):
        yield judge_named_apart(known, apart)
        return
    if causes:
        yield _as_the_ends_differ(known, causes[0])
        return
    if _has_moved_on(known):
        return
    in_dumps = list(find_rings_in_dumps(known))
    if in_dumps:
        yield from (_as_dumps_tell(known, one) for one in in_dumps)
        return
    for pair in known.pairs.misfits():
        yield _as_dumps_tell(known, judge_misfit(known, pair))
        return
    yield from (_as_dumps_tell(known, one) for one in find_unreceived(known))
    yield from find_late_crashes(known)
    swap = judge_swap(known)
    last = swap or (None if silent else judge_silence(known))
    if last is None and not silent:
        last = judge_echoes(known)
    if last is not None:
        yield _as_dumps_tell(known, last)


def _as_dumps_tell(known: HangFacts, incident: Incident) -> Incident:
    """The incident, no surer than dumps can be of who waits for whom: each rank writes its own at a moment of its own, its host
    may go on behind its device, and one that follows on the last call shows calls under way. What was called is as it was."""
    if known.progress is None or incident.kind in _OF_WHAT_WAS_CALLED or incident.confidence is POSSIBLE:
        return incident
    return replace(incident, confidence=LIKELY if known.progress.stood_long else POSSIBLE)


def _causes(known: HangFacts) -> Iterator[Incident]:
    """What can have stopped the job."""
    for parted in known.divergences:
        if parted.differs != REDUCTION:
            yield judge_divergence(known, parted)
    if _has_moved_on(known):
        return
    first = next(failures(known.endings), None)
    if first is not None:
        yield judge_failure(known, first)
    yield from find_leavers(known)
    for incident in (judge_ring(known, known.deadlock, CERTAIN), judge_passed_by(known)):
        if incident is not None:
            yield incident


def _as_the_ends_differ(known: HangFacts, incident: Incident) -> Incident:
    """What a ring of sends and receives comes from, where shortly before one of its messages had another size than the receive
    that took it, and none before had: then the two ends do not cut what they pass on into the same parts."""
    if incident.kind is not IncidentKind.RING or not incident.in_pairs:
        return incident
    for sent, got in known.pairs.misfits():
        recent = known.timeline(got.rank).log.calls["seq"][-LAST_CALLS:]
        if {sent.rank, got.rank} <= {*incident.ranks} and got.seq >= int(recent[0]):
            found = replace(judge_misfit(known, (sent, got)), waiting=incident.waiting)
            return _as_dumps_tell(known, found)
    return incident


def _has_moved_on(known: HangFacts) -> bool:
    """Whether dumps are of different moments: then who waits for whom in them was true at none."""
    return known.progress is not None and bool(known.progress.moved_on)


def _follows(known: HangFacts, causes: list[Incident]) -> bool:
    """Whether what stopped the job may come from ranks that talk to others than they think: all but an exception of a rank's
    own code."""
    if not causes:
        return silence(known.facts, known.endings) is not None
    first = causes[0]
    return first.kind is not IncidentKind.FAILED or first.ending is None or first.ending.how != RAISED
