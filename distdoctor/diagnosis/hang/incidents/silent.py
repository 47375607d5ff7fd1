"""Nothing is proven, and nobody moves: what the job's own rhythm says."""

from __future__ import annotations

from dataclasses import replace

from distdoctor.diagnosis.finding import LIKELY
from distdoctor.diagnosis.hang.hang_facts import HangFacts
from distdoctor.diagnosis.hang.incident import Incident
from distdoctor.diagnosis.hang.incidents.new_group import find_group_in_the_making, weigh_sides
from distdoctor.diagnosis.hang.incidents.ring import judge_ring
from distdoctor.diagnosis.hang.kinds import IncidentKind
from distdoctor.diagnosis.hang.live.rank_activity import only_communicates
from distdoctor.diagnosis.hang.silence import judge, silence
from distdoctor.diagnosis.hang.wait_for import deadlock, gone_for_good, probable_waits


def judge_silence(known: HangFacts) -> Incident | None:
    """What the job's own rhythm says, when nothing can be proven."""
    quiet = silence(known.facts, known.endings)
    if quiet is None:
        return None
    found = [*known.waits, *probable_waits(known.facts, known.pairs, known.waits, known.endings)]
    stacks = known.recording.stacks
    at_rest = [rank for rank, seen in stacks.ranks.items() if only_communicates(seen)] if stacks is not None else []
    dead = deadlock(known.facts, found, gone_for_good(known.endings), unseen_threads=False, at_rest=at_rest)
    ring = judge_ring(known, dead, LIKELY)
    if ring is not None:
        return replace(ring, silence=quiet)
    judged = judge(known.facts, quiet, found, known.endings)
    if judged is None:
        return None
    kind, ranks, confidence = judged
    incident = Incident(kind, ranks, quiet.since_ns, confidence, silence=quiet, waiting=tuple(found))
    making = find_group_in_the_making(known) if kind is IncidentKind.PASSED_BY else None
    return incident if making is None else weigh_sides(known, incident, making)
