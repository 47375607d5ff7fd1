"""Sends and receives that do not fit: another size than was sent, or nobody who receives."""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.diagnosis.finding import LIKELY
from distdoctor.diagnosis.hang.ending import LEFT
from distdoctor.diagnosis.hang.hang_facts import HangFacts
from distdoctor.diagnosis.hang.incident import Incident
from distdoctor.diagnosis.hang.kinds import IncidentKind
from distdoctor.recording.recording import Call


def judge_misfit(known: HangFacts, pair: tuple[Call, Call]) -> Incident:
    """A receive of another size than what was sent to it."""
    sent, got = pair
    at_ns = known.timeline(got.rank).wall(max(got.entered_ns, 1))
    return Incident(IncidentKind.MISFITTED, (got.rank, sent.rank), at_ns, usual=got, pair=pair)


def find_unreceived(known: HangFacts) -> Iterator[Incident]:
    """What was sent and never received, when every rank has ended in order and was seen to its end."""
    recording, endings = known.recording, known.endings
    ended = [rank for rank in range(recording.world_size) if rank in endings and endings[rank].how == LEFT]
    whole = not any(trouble.silenced for trouble in recording.troubles)
    if not whole or len(ended) < recording.world_size or len(known.facts.timelines) < recording.world_size:
        return
    for sent, count in known.pairs.lost():
        at_ns = known.timeline(sent.rank).wall(max(sent.entered_ns, 1))
        yield Incident(IncidentKind.UNRECEIVED, (sent.rank, sent.root), at_ns, LIKELY, odd=sent, lost_sends=count)
