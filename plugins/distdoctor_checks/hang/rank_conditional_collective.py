"""
DD112 rank-conditional-collective: a collective is called under a condition that depends on the rank.

What it means    A collective that all members of the group must call is inside `if rank == 0:` (or is_main_process, a
                 rank_zero_only decorator, ...).
Why it hurts     The ranks that skip the branch never enter the collective. The others wait for them, or pair with their next
                 collective.
How we know      The recorded calls diverge at this number. In the source, the line of the odd call, or of the call that the odd
                 ranks lack, is under a condition on the rank that admits exactly the ranks that made the call. Seen from outside,
                 it may stand around any call that led there since the stacks part; where the function calls the same once
                 more for the other ranks, it is no sign.
What to do       Move the collective out of the condition.
When it is fine  A collective on a group that contains exactly the ranks that the condition admits.
Source           torch.distributed: collectives must be called by all members of the group.
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.finding import ERROR, Finding, Place, Prescription, Stalls
from distdoctor.diagnosis.hang.incident import Incident
from distdoctor.diagnosis.hang.kinds import IncidentKind
from distdoctor.diagnosis.hang.live.apart import RanksApart
from distdoctor.diagnosis.hang.live.sides import Sides
from distdoctor.diagnosis.hang.live.stack_waits import line_of
from distdoctor.diagnosis.hang.played import agrees_with_all_at
from distdoctor.diagnosis.hang.verdict import Verdict
from distdoctor.diagnosis.hang.wording import (
    at,
    by_site,
    deciding_places,
    full,
    group_words,
    of_variants,
    short,
    test_of,
    tipped,
)
from distdoctor.diagnosis.source.called_before import called_before
from distdoctor.diagnosis.source.edits import Edit
from distdoctor.diagnosis.source.out_of_condition import out_of_condition
from distdoctor.diagnosis.source.rank_guard import guards_at
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Call, Recording
from distdoctor.recording.trace.layout import Op
from distdoctor.testing import recording

# What only the destination, or the source, gives to these.
_LISTS = {Op.GATHER: "gather_list", Op.SCATTER: "scatter_list"}


@check(
    "DD112",
    "rank-conditional-collective",
    severity=ERROR,
    family="hang",
    formerly=("DD126 ranks-apart",),
    stalls=Stalls.FOREVER,
    specificity=20,
)
def examine(verdict: Verdict | None, apart: RanksApart | None) -> Iterator[Finding]:
    if apart is not None and apart.sides is not None and apart.sides.is_under_rank:
        yield _by_stacks(apart.sides)
    if verdict is None:
        return
    for incident in verdict.of_kind(IncidentKind.DIVERGED, IncidentKind.STRAYED):
        if incident.is_under_rank:
            yield _finding(verdict, incident)


def _by_stacks(sides: Sides) -> Finding:
    assert sides.guard is not None
    one, guard, site = sides.odd[0], sides.guard.guard, sides.guard.site
    what = f"the {one.call} of {line_of(one)}" if site == one.site else f"what {at(site)} calls"
    change = f"call {what} on every rank: take it out of `{guard.test}` in line {guard.line}"
    return sides.finding("call-on-every-rank", change)


def _finding(verdict: Verdict, incident: Incident) -> Finding:
    assert incident.guard is not None
    assert incident.guarded is not None
    guarded = incident.guarded
    others = ""
    if guarded == incident.odd and incident.usual is not None:
        others = f"; the others are in {short(incident.usual)}"
        others += group_words(incident, incident.usual) if incident.usual.group != guarded.group else ""
    who = (
        f"{named(incident.ranks)} went on to {short(incident.odd)}" if guarded != incident.odd and incident.odd else ""
    )
    return Finding(
        title=f"{short(guarded)}{group_words(incident, guarded)} is called only under `{test_of(incident.guard)}`{others}",
        ranks=incident.ranks,
        confidence=incident.likely,
        stalls=incident.stalls,
        place=incident.guard_at,
        places=tuple(one for one in _places(verdict, incident) if one.ranks or one.site.line != incident.guard_at.line),
        evidence={
            "group": incident.group.name if incident.group else "",
            "condition": incident.guard.test,
            "condition_line": incident.guard.line,
            "guarded": full(guarded),
            "expected": full(incident.usual) if incident.usual else "",
            "issued": full(incident.odd) if incident.odd else "",
        }
        | tipped(incident, incident.rank_word),
        why=f"only ranks where `{incident.guard.only_if}` reach {at(guarded.site)}, but every member of the group must"
        + (f"; {who}" if who else ""),
        prescriptions=(cure(verdict, incident, guarded),),
        at_ns=incident.at_ns,
        explains=(incident.key,),
    )


def cure(verdict: Verdict, incident: Incident, guarded: Call) -> Prescription:
    assert incident.guard is not None
    words = f"move the {guarded.op.word} at {at(guarded.site)} out of `{test_of(incident.guard)}` (line {incident.guard.line})"
    if incident.guard_at.function not in (
        "<module>",
        guarded.site.function,
    ):  # it stands around a call that leads there
        words = f"let every rank come to the {guarded.op.word} at {at(guarded.site)}: move what leads there, or the "
        words += f"{guarded.op.word} itself, out of `{test_of(incident.guard)}` ({at(incident.guard_at)})"
    if guarded.op in _LISTS:
        words += f", with {_LISTS[guarded.op]}=None on all other ranks"
    edits = _edits(verdict, incident, guarded)
    kept = edits[0].text.partition("\n")[0].strip() if edits else ""
    if kept.startswith("if "):
        words += f", and keep it under `{kept}`"
    return Prescription("call-on-every-rank", change=words, edits=edits)


def _edits(verdict: Verdict, incident: Incident, guarded: Call) -> tuple[Edit, ...]:
    """The call taken out of its condition, where the calls on record then agree."""
    site, sources = guarded.site, verdict.recording.sources
    others = [one.site for one in (incident.odd, incident.usual) if one is not None and one.site != site]
    if any(guard.on_rank for other in others for guard in guards_at(sources, other)):
        return ()  # `if not main: barrier()` ... `if main: barrier()`: the one is meant to meet the other
    if incident.guard is None or not agrees_with_all_at(verdict.facts, site):
        return ()
    return out_of_condition(sources, site, incident.guard.line) or called_before(sources, site, incident.guard.line)


def _places(verdict: Verdict, incident: Incident) -> tuple[Place, ...]:
    if incident.divergence is not None:
        return of_variants(verdict, incident)
    calls = [call for wait in incident.waiting for call in wait.calls if call.rank not in incident.ranks]
    return (
        *by_site(verdict, calls),
        *by_site(verdict, [incident.odd] if incident.odd else []),
        *deciding_places(incident),
    )


SOURCE = """\
def train(model, loader, rank):
    for step, batch in enumerate(loader):
        loss = model(batch)
        dist.all_reduce(loss)
        if rank == 0:
            dist.barrier()
            save(model)
"""


def sick() -> Recording:
    script = recording(ranks=4).source("train.py", SOURCE)
    for step in range(4):
        script.collective("all_reduce", [1], site="train.py:4 train").step()
        if step == 2:
            script.collective("barrier", only=0, site="train.py:6 train")
    return script.live()


def healthy() -> Recording:
    """The same line, on a group of rank 0 alone."""
    script = recording(ranks=4).source("train.py", SOURCE).group("zero", [0])
    for _ in range(4):
        script.collective("all_reduce", [1], site="train.py:4 train").step()
        script.collective("barrier", group="zero", site="train.py:6 train")
    return script.live()
