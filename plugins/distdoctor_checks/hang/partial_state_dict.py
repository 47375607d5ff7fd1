"""
DD125 partial-state-dict: a sharded state_dict or save was called on only some of the ranks.

What it means    The state_dict of a sharded model (FSDP, DTensor) gathers shards from all ranks. Under `if rank == 0:` only one
                 rank requests them.
Why it hurts     That rank waits for shards that no rank sends, and the others enter their next collective. This typically
                 happens at the first checkpoint, after an hour of training.
How we know      The recorded calls diverge at this number. The odd call gathers or broadcasts, its line or function calls a
                 state_dict or a save, and it is under a condition on the rank.
What to do       Call state_dict on every rank, and write the file on one rank.
When it is fine  state_dict of a replicated model (DDP), which does not communicate.
Source           torch.distributed.checkpoint.state_dict; FullyShardedDataParallel.state_dict.
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.finding import ERROR, Finding, Prescription, Stalls
from distdoctor.diagnosis.hang.incident import Incident
from distdoctor.diagnosis.hang.kinds import IncidentKind
from distdoctor.diagnosis.hang.live.apart import RanksApart, Sides, line_of
from distdoctor.diagnosis.hang.verdict import Verdict
from distdoctor.diagnosis.hang.wording import (
    at,
    of_variants,
    short,
    test_of,
    tipped,
)
from distdoctor.diagnosis.source.rank_guard import statement_at
from distdoctor.recording.recording import Recording
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
        if incident.is_under_rank and _save_word(verdict, incident):
            yield _finding(verdict, incident)


def _by_stacks(sides: Sides) -> Iterator[Finding]:
    """A save under a condition on the rank, by the word on its line."""
    one, guard = sides.odd[0], sides.guard
    if guard is not None and _IN_STACKS in one.line + one.call:
        change = f"call {line_of(one)} on every rank, before `if {guard.test}:` (line {guard.line}); keep only the writing inside"
        yield sides.finding("state-dict-on-every-rank", change, tipped_by=(_IN_STACKS,))


def _save_word(verdict: Verdict, incident: Incident) -> str:
    """The word on the line of one of the calls by which it gathers shards for a checkpoint, "" when there is none."""
    for call in filter(None, (incident.odd, incident.usual)):
        words = statement_at(verdict.recording.sources, call.site) + " " + call.site.function
        found = next((word for word in _SAVES if word in words), "") if call.op in _GATHERS else ""
        if found:
            return found
    return ""


def _finding(verdict: Verdict, incident: Incident) -> Finding:
    call, guard = incident.guarded, incident.guard
    assert call is not None
    assert guard is not None
    assert incident.usual is not None
    assert incident.odd is not None
    statement = statement_at(verdict.recording.sources, call.site)
    return Finding(
        title=f"`{statement[:80] or call.site.function}` gathers shards under `{test_of(guard)}`: "
        f"{short(incident.odd)} is paired with {short(incident.usual)}",
        ranks=incident.ranks,
        confidence=incident.likely,
        stalls=incident.stalls,
        place=call.site,
        places=of_variants(verdict, incident),
        evidence={"statement": statement, "condition": guard.test, "condition_line": guard.line}
        | tipped(incident, incident.rank_word, _save_word(verdict, incident)),
        why=f"{at(call.site)} runs only where `{guard.only_if}`, but every rank holds a shard of the state",
        prescriptions=(
            Prescription(
                "state-dict-on-every-rank",
                change=f"call it on every rank, before `{test_of(guard)}` (line {guard.line}); keep only the file write inside",
            ),
        ),
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
