"""The finding that a group's members issued the same operation with something that should agree and does not."""

from __future__ import annotations

from distdoctor.diagnosis.finding import Finding, Prescription
from distdoctor.diagnosis.hang.verdict import Event, Verdict
from distdoctor.diagnosis.hang.wording import full, group_words, of_variants, table, test_of
from distdoctor.recording.recording import Call


def mismatch(
    verdict: Verdict, event: Event, what: str, value: dict[Call, str], cure: Prescription, harm: str
) -> Finding:
    """`what` differs; `value` says, per variant's first call, what it was; `harm` is what comes of it."""
    assert event.divergence is not None
    assert event.odd is not None
    variants = {value[variant.call]: variant.ranks for variant in event.divergence.variants}
    op = event.odd.op.word
    why = f"{op} #{event.divergence.number}{group_words(event)} has {what} {table(variants)}: {harm}"
    if event.guard is not None:
        why += f"; `{test_of(event.guard)}` (line {event.guard.line}) sends the ranks two ways"
    usual = [text for text, ranks in variants.items() if not set(ranks) & set(event.ranks)]
    mine = [text for text, ranks in variants.items() if set(ranks) & set(event.ranks)]
    against = f"{what} {' against '.join(mine)}" + (f", the others have {', '.join(usual)}" if usual else "")
    return Finding(
        title=f"{op} #{event.divergence.number}{group_words(event)} with {against}",
        ranks=event.ranks,
        confidence=event.confidence,
        stalls=event.stalls,
        place=event.odd.site,
        places=of_variants(verdict, event),
        evidence={
            "group": event.divergence.group.name,
            "sequence_number": event.divergence.number,
            what.replace(" ", "_"): {text: list(ranks) for text, ranks in variants.items()},
            "calls": [full(variant.call) for variant in event.divergence.variants],
        },
        why=why,
        prescriptions=(cure,),
        at_ns=event.at_ns,
    )
