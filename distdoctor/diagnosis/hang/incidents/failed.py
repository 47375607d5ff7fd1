"""Ranks failed: by themselves, or because a peer was gone of whom nothing more is on record."""

from __future__ import annotations

from distdoctor.diagnosis.finding import CERTAIN, LIKELY, POSSIBLE
from distdoctor.diagnosis.hang.ending import ENDED, Ending, failures
from distdoctor.diagnosis.hang.hang_facts import HangFacts
from distdoctor.diagnosis.hang.incident import Incident
from distdoctor.diagnosis.hang.incidents.unfit import judge_unfit
from distdoctor.diagnosis.hang.kinds import IncidentKind


def judge_failure(known: HangFacts, first: Ending) -> Incident:
    """A rank that failed by itself; ranks that failed with the same words are named with it."""

    def alike(other: Ending) -> bool:
        return (other.how, other.kind, other.site, other.signal) == (
            first.how,
            first.kind,
            first.site,
            first.signal,
        )

    same = [e for e in failures(known.endings) if e.rank != first.rank and alike(e)]
    return Incident(
        IncidentKind.FAILED,
        (first.rank, *(e.rank for e in same)),
        first.at_ns,
        LIKELY if first.printed else CERTAIN,
        ending=first,
        also=tuple(same),
        waiting=known.waiting_for({first.rank}),
    )


def judge_echoes(known: HangFacts) -> Incident | None:
    """Ranks failed for lack of a peer, and what happened to the peer is not on record. Where somebody ended the job from
    outside, that is what happened: hosts are asked one after the other. Patience that ran out is older than that."""
    victims = sorted((e for e in known.endings.values() if e.victim), key=lambda e: (e.at_ns or 1 << 63, e.rank))
    job = known.recording.job
    ended_from_outside = bool(job.interrupted) and bool(victims) and not victims[0].timed_out
    if not victims or job.running or ended_from_outside:
        return None
    unfit = judge_unfit(known, victims)
    if unfit is not None:
        return unfit
    awaited = _awaited(known, victims)
    return Incident(
        IncidentKind.GAVE_UP if awaited else IncidentKind.ECHOED,
        awaited,
        victims[0].at_ns,
        POSSIBLE,
        ending=victims[0],
        also=tuple(victims[1:]),
    )


def _awaited(known: HangFacts, victims: list[Ending]) -> tuple[int, ...]:
    """The ranks that were in no call, and there until the launcher ended them, when the others' patience ended: nobody was
    lost. () where a rank may have been."""
    endings, world = known.endings, range(known.recording.world_size)
    others = set(world) - {one.rank for one in victims}
    if not all(one.timed_out for one in victims) or any(
        rank not in endings or endings[rank].how != ENDED or rank not in known.facts.timelines for rank in others
    ):
        return ()
    return tuple(rank for rank in sorted(others) if not known.timeline(rank).sitting)
