"""The finding that a group's members issued the same operation with something that should agree and does not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from distdoctor.diagnosis.finding import Finding, Prescription
from distdoctor.diagnosis.hang.incident import Incident
from distdoctor.diagnosis.hang.kinds import IncidentKind
from distdoctor.diagnosis.hang.played import agrees_without
from distdoctor.diagnosis.hang.verdict import Verdict
from distdoctor.diagnosis.hang.wording import (
    full,
    group_words,
    of_variants,
    table,
    test_of,
    tipped,
)
from distdoctor.diagnosis.source.edits import Edit
from distdoctor.diagnosis.source.rank_choice import singled_out, without_choice
from distdoctor.recording.recording import Call


def in_place(verdict: Verdict, what: str) -> Iterator[Incident]:
    """The incidents in which the ranks of a group issued one call with different arguments."""
    found = verdict.of_kind(IncidentKind.DIVERGED)
    return (incident for incident in found if incident.in_place and incident.differs == what)


def _same_for_all(verdict: Verdict, incident: Incident) -> tuple[Edit, ...]:
    """The value of the other ranks given to all, where an expression in the one line that all call names the odd rank, and the
    calls of all other lines agree."""
    assert incident.divergence is not None
    variants, sources = incident.divergence.variants, verdict.recording.sources
    if incident.odd is None or len({variant.call.site for variant in variants}) > 1:
        return ()
    odd = tuple(rank for rank in incident.ranks if not incident.is_tie)
    others = [rank for variant in variants for rank in variant.ranks if rank not in odd]
    site = incident.odd.site
    choice = (incident.choice or singled_out(sources, site, odd, others)) if odd else None
    if choice is None or not agrees_without(incident.divergence.group, site):
        return ()
    return without_choice(sources, site, choice, others)


def mismatch(
    verdict: Verdict, incident: Incident, what: str, value: dict[Call, str], cure: Prescription, harm: str
) -> Finding:
    """`what` differs; `value` says, per variant's first call, what it was; `harm` is what comes of it."""
    incident = incident.decided_by(incident.branch or incident.choice)
    assert incident.divergence is not None
    assert incident.odd is not None
    variants = {value[variant.call]: variant.ranks for variant in incident.divergence.variants}
    op = incident.odd.op.word
    why = f"{op} #{incident.divergence.number}{group_words(incident)} has {what} {table(variants)}: {harm}"
    if incident.guard is not None:
        why += f"; `{test_of(incident.guard)}` (line {incident.guard.line}) sends the ranks down different branches"
    usual = [text for text, ranks in variants.items() if not set(ranks) & set(incident.ranks)]
    mine = [text for text, ranks in variants.items() if set(ranks) & set(incident.ranks)]
    against = f"{what} {' against '.join(mine)}" + (f"; the others have {', '.join(usual)}" if usual else "")
    return Finding(
        title=f"called {op} #{incident.divergence.number}{group_words(incident)} with {against}",
        ranks=incident.ranks,
        confidence=incident.confidence,
        stalls=incident.stalls,
        place=incident.odd.site,
        places=of_variants(verdict, incident),
        evidence={
            "group": incident.divergence.group.name,
            "sequence_number": incident.divergence.number,
            what.replace(" ", "_"): {text: list(ranks) for text, ranks in variants.items()},
            "calls": [full(variant.call) for variant in incident.divergence.variants],
        }
        | tipped(incident),
        why=why,
        prescriptions=(cure if cure.edits else replace(cure, edits=_same_for_all(verdict, incident)),),
        at_ns=incident.at_ns,
        explains=(incident.key,),
        undecided=incident.undecided,
    )
