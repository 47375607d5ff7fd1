"""Every member of a group failed inside one all_to_all, some by an abort: nobody was lost before, what came was not expected.

Each rank brings splits of its own, so their calls may differ as they like, and only gloo sees that they do not fit. A rank that
received nothing in an exchange of the same step is the likeliest to have left one out: an empty input often leaves the graph,
and then backward has no exchange to make.
"""

from __future__ import annotations

from collections.abc import Sequence

from distdoctor.diagnosis.facts.collectives import GroupCalls
from distdoctor.diagnosis.finding import LIKELY, POSSIBLE
from distdoctor.diagnosis.hang.alignment import elements
from distdoctor.diagnosis.hang.ending import SIGABRT, Ending
from distdoctor.diagnosis.hang.hang_facts import HangFacts
from distdoctor.diagnosis.hang.incident import Incident
from distdoctor.diagnosis.hang.kinds import IncidentKind
from distdoctor.diagnosis.hang.wait_for import Wait
from distdoctor.recording.recording import Call
from distdoctor.recording.trace.layout import Op

SPLIT = frozenset({Op.ALL_TO_ALL, Op.ALL_TO_ALL_SINGLE})  # in which the sizes of the members need not agree


def judge_unfit(known: HangFacts, victims: Sequence[Ending]) -> Incident | None:
    """The incident, with the ranks that had received nothing as the odd ones (`usual` is then that call), else with all."""
    calls = [known.timeline(one.rank).failed_call for one in victims if one.rank in known.facts.timelines]
    inside = tuple(call for call in calls if call is not None)
    group = known.facts.group_of(inside[0]) if inside else None
    if (
        group is None
        or group.backend != "gloo"
        or inside[0].op not in SPLIT
        or all(v.signal != SIGABRT for v in victims)  # the others lose a peer that was aborted
    ):
        return None
    alike = {(id(known.facts.group_of(call)), call.number, call.op) for call in inside}
    if len(alike) > 1 or {call.rank for call in inside} != set(group.members):
        return None
    empty = _last_empty(group, inside[0])
    return Incident(
        IncidentKind.UNFIT,
        tuple(call.rank for call in empty) or tuple(sorted(group.members)),
        victims[0].at_ns,
        LIKELY if empty else POSSIBLE,
        odd=inside[0],
        usual=empty[0] if empty else None,
        group=group,
        ending=victims[0],
        also=tuple(victims[1:]),
        waiting=(Wait(inside, (), group),),
        is_tie=not empty,
    )


def _last_empty(group: GroupCalls, at: Call) -> tuple[Call, ...]:
    """The calls of the latest exchange of the same step into which few ranks put nothing, and others something."""
    for number in range(at.number - 1, 0, -1):
        calls = [track.call(number) for track in group.tracks.values()]
        there = [call for call in calls if call is not None and call.op in SPLIT and call.step == at.step]
        if len(there) < len(calls):
            return ()
        empty = tuple(call for call in there if call.shape and elements(call.shape) == 0)
        if 0 < 2 * len(empty) < len(there) or (empty and len(there) == 2 > len(empty)):
            return empty
    return ()
