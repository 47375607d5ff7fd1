"""Two calls of equal size came in the other order on some ranks, and nobody noticed: every sum is over different tensors."""

from __future__ import annotations

from dataclasses import replace

from distdoctor.diagnosis.finding import LIKELY
from distdoctor.diagnosis.hang.hang_facts import HangFacts
from distdoctor.diagnosis.hang.incident import Incident
from distdoctor.diagnosis.hang.kinds import IncidentKind
from distdoctor.diagnosis.hang.program import SWAPPED, CallEdit
from distdoctor.diagnosis.hang.swapped import swapped_calls
from distdoctor.diagnosis.source.deciding import deciding_condition


def judge_swap(known: HangFacts) -> Incident | None:
    """The first two calls that one rank issued in the other order; None where all kept it."""
    for group in known.facts.groups:
        for swap in swapped_calls(group, known.sources):
            incident = Incident(
                IncidentKind.SWAPPED,
                swap.ranks,
                swap.at_ns,
                LIKELY,
                usual=swap.usual,
                odd=swap.odd,
                group=group,
                departure=CallEdit(SWAPPED),
                called=swap.called,
            )
            return _named_by_condition(known, incident) if len(group.tracks) == 2 else incident
    return None


def _named_by_condition(known: HangFacts, swapped: Incident) -> Incident:
    """The swap of two ranks: the one that the deciding condition names is the odd one, else there is none."""
    odd, usual = swapped.odd, swapped.usual
    assert odd is not None
    assert usual is not None
    decision = deciding_condition(known.sources, odd.site, usual.site) if odd.site != usual.site else None
    named = decision.rank_named if decision is not None else None
    if named == odd.rank:
        return replace(swapped, ranks=(named,))
    if named == usual.rank:
        called = (swapped.called[1], swapped.called[0]) if swapped.called is not None else None
        return replace(swapped, ranks=(named,), odd=usual, usual=odd, called=called)
    return replace(swapped, is_tie=True)
