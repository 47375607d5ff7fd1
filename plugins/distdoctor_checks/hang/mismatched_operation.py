"""
DD102 mismatched-operation: ranks of a group called different operations at the same sequence number.

What it means    Where some ranks call all_reduce, others call broadcast (or another operation) at the same place of the
                 program.
Why it hurts     Each side waits for the other, or takes the other's bytes for its own: a hang, an abort of an innocent
                 rank, or wrong numbers.
How we know      Per group, the running digests of all ranks' calls are compared; at the first number at which they
                 differ the operations differ, on the same line or in two branches of one condition. When a rank went on
                 to another part of the program instead, DD101 says so.
What to do       Call the same torch.distributed operation on every rank of the group.
When it is fine  Different operations on different groups, and sends and receives, which pair up otherwise.
Source           torch.distributed, "collective functions": all members call them in the same order.
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.diagnosis.check import NotSeen, check
from distdoctor.diagnosis.finding import ERROR, Finding, Prescription, Stalls
from distdoctor.diagnosis.hang.in_logs import OPERATION, LogVerdict
from distdoctor.diagnosis.hang.verdict import Event, Verdict
from distdoctor.diagnosis.hang.wording import at, full, group_words, of_variants, table, test_of
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Recording
from distdoctor.testing import recording


@check(
    "DD102",
    "mismatched-operation",
    severity=ERROR,
    family="hang",
    formerly=("DD127 told-by-the-log",),
    stalls=Stalls.FOREVER,
)
def examine(verdict: Verdict | None, log: LogVerdict | None) -> Iterator[Finding]:
    if log is not None:
        yield from log.told(OPERATION)
    if verdict is None:
        if log is None:
            raise NotSeen("neither the ranks' recordings nor a job log is there")
        return
    for event in verdict.told("DD102"):
        yield _finding(verdict, event)


def _finding(verdict: Verdict, event: Event) -> Finding:
    assert event.odd is not None
    assert event.usual is not None
    assert event.divergence is not None
    variants = {full(variant.call): variant.ranks for variant in event.divergence.variants}
    words = " and ".join(sorted({variant.call.op.word for variant in event.divergence.variants}))
    why = f"at number {event.divergence.number}{group_words(event)}: {table(variants)}"
    if event.guard is not None:
        why += f"; `{test_of(event.guard)}` (line {event.guard.line}) sends the ranks two ways"
    return Finding(
        title=f"{words} meet at number {event.divergence.number}{group_words(event)}",
        ranks=event.ranks,
        confidence=event.confidence,
        stalls=event.stalls,
        place=event.odd.site,
        places=of_variants(verdict, event),
        evidence={
            "group": event.divergence.group.name,
            "sequence_number": event.divergence.number,
            "variants": {words: list(ranks) for words, ranks in variants.items()},
        },
        why=why,
        prescriptions=(_cure(event),),
        at_ns=event.at_ns,
    )


def _cure(event: Event) -> Prescription:
    assert event.odd is not None
    assert event.usual is not None
    if event.is_tie:
        two = " or ".join(f"{call.op.word} at {at(call.site)}" for call in (event.odd, event.usual))
        change = f"issue one operation on all ranks: {two}"
    else:
        change = f"issue {event.usual.op.word} at {at(event.odd.site)} on {named(event.ranks)} too"
    return Prescription("same-operation", change=change)


def sick() -> Recording:
    script = recording(ranks=4)
    for step in range(4):
        script.collective("all_reduce", [8], site="train.py:41 exchange")
        if step == 2:
            script.instead(1, op="broadcast", root=0, reduce_op=None)
        script.step()
    return script.live()


def healthy() -> Recording:
    """Two groups run different operations at the same numbers."""
    script = recording(ranks=4).group("left", [0, 1]).group("right", [2, 3])
    for _ in range(4):
        script.collective("all_reduce", [8], group="left", site="train.py:41 exchange")
        script.collective("broadcast", [8], group="right", site="train.py:43 exchange")
        script.step()
    return script.live()
