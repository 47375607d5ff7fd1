"""
DD102 mismatched-operation: ranks of a group called different operations at the same sequence number.

What it means    At the same place in the program, some ranks call all_reduce and others call broadcast (or another operation).
Why it hurts     Each side waits for the other or misreads its bytes: a hang, an abort on an innocent rank, or wrong numbers.
How we know      The running digests of all ranks' calls are compared per group. At the first number where they differ, the
                 operations differ, either on one line or in two branches of one condition. If a rank instead went on to another
                 part of the program, DD101 reports it.
What to do       Call the same torch.distributed operation on every rank of the group.
When it is fine  Different operations on different groups; sends and receives, which pair up by other rules.
Source           torch.distributed, "collective functions": all members call them in the same order.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.finding import ERROR, POSSIBLE, Finding, Prescription, Stalls
from distdoctor.diagnosis.hang.decide_once import decide_once
from distdoctor.diagnosis.hang.in_logs import BY_TORCH, LOOK, LogFacts, claimed, from_line, from_own_error, who
from distdoctor.diagnosis.hang.in_ras import other_operations
from distdoctor.diagnosis.hang.incident import Incident
from distdoctor.diagnosis.hang.kinds import IncidentKind
from distdoctor.diagnosis.hang.program import SKIPPED
from distdoctor.diagnosis.hang.verdict import Verdict
from distdoctor.diagnosis.hang.wording import (
    at,
    full,
    group_words,
    of_variants,
    test_of,
    tipped,
)
from distdoctor.recording.clue import Clue, ClueKind
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Recording
from distdoctor.testing import recording

_COMPARED = re.compile(
    r"Detected mismatch between collectives on ranks\.(?: Rank (\d{1,9}) is running (?:inconsistent )?collective: "
    r"CollectiveFingerPrint\((?:SequenceNumber=\d{1,18},? ?)?OpType=(\w{1,40}))?"
)


@check(
    "DD102",
    "mismatched-operation",
    severity=ERROR,
    family="hang",
    formerly=("DD127 told-by-the-log",),
    stalls=Stalls.FOREVER,
    specificity=50,
)
def examine(verdict: Verdict | None, log: LogFacts | None) -> Iterator[Finding]:
    if log is not None:
        yield from _by_log(log)
    if verdict is None:
        return
    for incident in verdict.of_kind(IncidentKind.DIVERGED):
        if incident.replaces:
            yield _finding(verdict, incident.decided_by(incident.branch))
        elif _takes_a_branch(incident):
            yield replace(_finding(verdict, incident), specificity=35)


def _by_log(log: LogFacts) -> Iterator[Finding]:
    yield from claimed(other_operations(log.ras), 91)
    if (checked := log.checked_by_torch("operation")) is not None:
        yield checked.finding("operation", "issued another operation", "same-operation", BY_TORCH)
    if log.other_operations is not None:
        # Of other operations the sizes differ as well: it says more than those do.
        yield log.other_operations.finding("operation", "issued another operation", "same-operation", 70)
    if log.own_error is not None and not any(map(log.checked_by_torch, ("operation", "shape", "dtype"))):
        yield from _half_told(log, log.own_error)
    warned = [clue for clue in log.lines(ClueKind.WARNING) if "mismatched collective" in clue.words.lower()]
    yield from map(_warned, warned[:1])


def _half_told(log: LogFacts, clue: Clue) -> Iterator[Finding]:
    """What torch has compared itself, of which the log does not hold the calls of both sides."""
    if (own := _COMPARED.search(clue.words)) is None:
        return
    called = f": rank {own[1]} of the group called {own[2]}" if own[1] else ""
    cure = Prescription("same-operation", change=f"compare what the ranks call there; {LOOK}")
    found = from_own_error(log, f"torch found that the ranks' collectives differ{called}", cure, BY_TORCH)
    yield replace(
        found, confidence=POSSIBLE, why=f"line {clue.line_number} of the log; what the others call it does not say"
    )


def _warned(clue: Clue) -> Finding:
    return from_line(
        clue,
        f"NCCL warned: {clue.words.partition('NCCL WARN ')[2][:110]}",
        who(clue),
        POSSIBLE,
        "NCCL found that ranks issued different collectives, or the same one with other sizes; which ones it does not say",
        Prescription("same-operation", change=f"compare what the ranks call there; {LOOK}"),
        specificity=30,
    )


def _takes_a_branch(incident: Incident) -> bool:
    """Whether the odd call stands in one branch of a condition whose other branch does something else."""
    guard = incident.guard if incident.guarded is not None and incident.guarded is incident.odd else None
    if incident.odd is None or incident.usual is None or incident.odd.op is incident.usual.op:
        return False
    return guard is not None and guard.instead and not guard.on_rank and incident.how != SKIPPED


def _finding(verdict: Verdict, incident: Incident) -> Finding:
    assert incident.odd is not None
    assert incident.usual is not None
    assert incident.divergence is not None
    variants = {full(variant.call): variant.ranks for variant in incident.divergence.variants}
    why = "call after call, the ranks of a group must call the same operation; these cannot complete together"
    if incident.guard is not None:
        why += f"; `{test_of(incident.guard)}` (line {incident.guard.line}) sends the ranks down different branches"
    return Finding(
        title=_title(incident),
        ranks=incident.ranks,
        confidence=incident.confidence,
        stalls=incident.stalls,
        place=incident.odd.site,
        places=of_variants(verdict, incident),
        evidence={
            "group": incident.divergence.group.name,
            "sequence_number": incident.divergence.number,
            "variants": {words: list(ranks) for words, ranks in variants.items()},
        }
        | tipped(incident),
        why=why,
        prescriptions=(_cure(verdict, incident),),
        at_ns=incident.at_ns,
        explains=(incident.key,),
        undecided=incident.undecided,
    )


def _title(incident: Incident) -> str:
    """`called broadcast as collective #3, where ranks 0,2-3 called all_reduce`; of a tie `disagree on collective #3: ...`."""
    assert incident.divergence is not None
    where = f"collective #{incident.divergence.number}{group_words(incident)}"
    sides: dict[str, list[int]] = {}
    for variant in incident.divergence.variants:
        sides.setdefault(variant.call.op.word, []).extend(variant.ranks)
    mine = [word for word, ranks in sides.items() if set(ranks) == set(incident.ranks)]
    if incident.is_tie or not mine:
        calls = (f"{named(ranks)} {'calls' if len(ranks) == 1 else 'call'} {word}" for word, ranks in sides.items())
        return f"disagree on {where}: {', '.join(calls)}"
    others = ", ".join(f"{named(ranks)} called {word}" for word, ranks in sides.items() if word not in mine)
    return f"called {mine[0]} as {where}, where {others}"


def _cure(verdict: Verdict, incident: Incident) -> Prescription:
    assert incident.odd is not None
    assert incident.usual is not None
    stops = incident.decision is not None and incident.decision.stops_a_framework
    two_lines = incident.odd.site != incident.usual.site  # else no question that leads there can have parted them
    decided = decide_once(verdict, incident) if stops or (incident.is_tie and two_lines) else None
    if decided is not None and incident.decision is not None and not incident.decision.comes_from_the_rank:
        return decided
    if incident.is_tie:
        two = " or ".join(f"{call.op.word} at {at(call.site)}" for call in (incident.odd, incident.usual))
        change = f"call the same operation on all ranks: {two}"
    else:
        where = f" at {at(incident.odd.site)}" if incident.odd.site else f" as #{incident.odd.number}"
        change = f"call {incident.usual.op.word}{where} on {named(incident.ranks)} too"
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
