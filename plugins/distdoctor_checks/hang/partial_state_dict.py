"""
DD125 partial-state-dict: a sharded state_dict or save was called on only some of the ranks.

What it means    The state_dict of a sharded model (FSDP, DTensor) gathers shards from all ranks. Under `if rank == 0:`, or where
                 ranks answer `if loss < best:` differently, only some ranks request them.
Why it hurts     That rank waits for shards that no rank sends, and the others enter their next collective. This typically
                 happens at the first checkpoint, after an hour of training.
How we know      The recorded calls diverge at this number. The odd call gathers or broadcasts, its line or function calls a
                 state_dict or a save, and it is under a condition on the rank, or under one that decided here (a loss that
                 only rank 0 knows, a file that is there).
What to do       Call state_dict on every rank, and write the file on one rank.
When it is fine  state_dict of a replicated model (DDP), which does not communicate.
Source           torch.distributed.checkpoint.state_dict; FullyShardedDataParallel.state_dict.
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.finding import ERROR, Finding, Prescription, Stalls
from distdoctor.diagnosis.hang.decision import led_to_by
from distdoctor.diagnosis.hang.incident import Incident
from distdoctor.diagnosis.hang.kinds import IncidentKind
from distdoctor.diagnosis.hang.live.apart import RanksApart
from distdoctor.diagnosis.hang.live.sides import Sides
from distdoctor.diagnosis.hang.live.stack_waits import line_of
from distdoctor.diagnosis.hang.verdict import Verdict
from distdoctor.diagnosis.hang.wording import (
    at,
    decided_words,
    of_variants,
    short,
    test_of,
    tipped,
)
from distdoctor.diagnosis.source.rank_guard import ENCLOSES, statement_at
from distdoctor.recording.recording import Call, Recording
from distdoctor.recording.trace.layout import Op
from distdoctor.testing import recording

_GATHERS = {Op.ALL_GATHER, Op.ALL_GATHER_INTO_TENSOR, Op.ALL_GATHER_COALESCED, Op.BROADCAST, Op.GATHER}
_SAVES = (
    "state_dict",
    "full_tensor",
    "dcp.save",
    "checkpoint.save",
    "save_checkpoint",
    "save_model",
    "save_pretrained",
)


_IN_STACKS = "state_dict"


@check(
    "DD125",
    "partial-state-dict",
    severity=ERROR,
    family="hang",
    formerly=("DD126 ranks-apart",),
    stalls=Stalls.FOREVER,
    specificity=30,
)
def examine(verdict: Verdict | None, apart: RanksApart | None) -> Iterator[Finding]:
    if apart is not None and apart.sides is not None and apart.sides.is_under_rank:
        yield from _by_stacks(apart.sides)
    if verdict is None:
        return
    for incident in verdict.of_kind(IncidentKind.DIVERGED):
        yield from _by_guard(verdict, incident) if _is_inside(incident) else _by_decision(verdict, incident)


def _is_inside(incident: Incident) -> bool:
    return incident.guard is not None and incident.guarded is not None and incident.guard.how == ENCLOSES


def _by_guard(verdict: Verdict, incident: Incident) -> Iterator[Finding]:
    """A save inside a condition that only one side met."""
    guard, call = incident.guard, incident.guarded
    if guard is not None and call is not None and _save_word(verdict, incident.odd, incident.usual):
        cure = _before(test_of(guard), guard.line) if guard.on_rank else _alike(guard.test)
        yield _finding(verdict, incident, call, guard.only_if, test_of(guard), guard.line, cure)


def _by_decision(verdict: Verdict, incident: Incident) -> Iterator[Finding]:
    """A save behind a condition that the ranks answered differently."""
    decision = incident.decision
    if decision is None or not decision.decides_alone:
        return
    under = [call for call in (incident.odd, incident.usual) if call and led_to_by(verdict.facts, decision, call)]
    if len(under) == 1 and _save_word(verdict, *under):
        cure = _alike(decision.question)
        yield _finding(verdict, incident, under[0], decision.question, decision.test, decision.site.line, cure)


def _before(test: str, line: int) -> Prescription:
    change = f"call it on every rank, before `{test}` (line {line}); keep only the file write inside"
    return Prescription("state-dict-on-every-rank", change=change)


def _alike(question: str) -> Prescription:
    change = (
        f"let all ranks answer `{question}` alike (broadcast or all_reduce what it asks for), or call it on every rank"
    )
    return Prescription("decide-once", change=change)


def _by_stacks(sides: Sides) -> Iterator[Finding]:
    """A save under a condition on the rank, by the word on its line."""
    one = sides.odd[0]
    if sides.guard is not None and _IN_STACKS in one.line + one.call:
        guard = sides.guard.guard
        change = f"call {line_of(one)} on every rank, before `if {guard.test}:` (line {guard.line}); keep only the writing inside"
        yield sides.finding("state-dict-on-every-rank", change, tipped_by=(_IN_STACKS,))


def _save_word(verdict: Verdict, *calls: Call | None) -> str:
    """The word on the line of one of the calls by which it gathers shards for a checkpoint, "" when there is none."""
    for call in filter(None, calls):
        words = statement_at(verdict.recording.sources, call.site) + " " + call.site.function
        found = next((word for word in _SAVES if word in words), "") if call.op in _GATHERS else ""
        if found:
            return found
    return ""


def _finding(
    verdict: Verdict, incident: Incident, call: Call, only_if: str, test: str, line: int, cure: Prescription
) -> Finding:
    """`call` is made only where `only_if` holds, which the line `line` asks with the words `test`."""
    assert incident.usual is not None
    assert incident.odd is not None
    statement = statement_at(verdict.recording.sources, call.site)
    decided = decided_words(incident)
    return Finding(
        title=f"`{statement[:80] or call.site.function}` gathers shards under `{test}`: "
        f"{short(incident.odd)} is paired with {short(incident.usual)}",
        ranks=incident.ranks,
        confidence=incident.likely,
        stalls=incident.stalls,
        place=call.site,
        places=of_variants(verdict, incident),
        evidence={"statement": statement, "condition": only_if, "condition_line": line}
        | tipped(incident, incident.rank_word, _save_word(verdict, call)),
        why=f"{at(call.site)} runs only where `{only_if}`, but every rank holds a shard of the state"
        + (f"; {decided}" if decided else ""),
        prescriptions=(cure,),
        at_ns=incident.at_ns,
        explains=(incident.key,),
    )


SOURCE = """\
def train(model, loader, rank):
    for step, batch in enumerate(loader):
        model(batch).backward()
        if rank == 0 and step % 100 == 99:
            state = model.state_dict()
            torch.save(state, "model.pt")
"""


def _saved(by: list[int]) -> Recording:
    script = recording(ranks=4).source("train.py", SOURCE)
    for step in range(4):
        script.collective("reduce_scatter_tensor", [64], site="train.py:3 train").step()
        if step == 2:
            script.collective("all_gather_into_tensor", [16], only=by, site="train.py:5 train")
    return script.live()


def sick() -> Recording:
    return _saved([0])


def healthy() -> Recording:
    return _saved([0, 1, 2, 3])
