"""
DD128 data-dependent-module: a sharded module ran on only some of the ranks in one step.

What it means    Under fully_shard (FSDP, ZeRO-3) a module gathers its parameters from all ranks when it runs. One rank's batch
                 had no image, or no token for an expert, so that rank never called the module whose parameters the others
                 gather.
Why it hurts     The others hang in the module's all_gather, or pair it with the all_gather of another module.
How we know      The calls of the group diverge, and the call that one side lacks is a parameter gather that no line of the
                 program issues itself: its line calls a module, in a program that shards with fully_shard or FSDP.
                 Under expert parallelism: all ranks failed inside one all_to_all, and some had put no rows into one of the
                 same step, which the others had (likely).
What to do       Run the module on every rank in every step (on an empty or dummy input whose output is multiplied by zero), or
                 let all ranks decide together whether it runs.
When it is fine  The module is not sharded, or its group contains only the ranks that run it.
Source           torch.distributed.fsdp.fully_shard: the parameters are all-gathered in the pre-forward hook.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.finding import CERTAIN, ERROR, LIKELY, Finding, Place, Prescription, Stalls
from distdoctor.diagnosis.hang.decision import led_to_by
from distdoctor.diagnosis.hang.incident import Incident
from distdoctor.diagnosis.hang.kinds import IncidentKind
from distdoctor.diagnosis.hang.verdict import Verdict
from distdoctor.diagnosis.hang.wording import at, decided_words, full, of_variants, short
from distdoctor.diagnosis.source.rank_guard import statement_at
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Call, Recording, SourceLine
from distdoctor.recording.trace.layout import Op
from distdoctor.testing import recording

# With gloo, torch 2.14 makes calls on lists of those on whole tensors before anybody is told.
_GATHERS = (Op.ALL_GATHER_INTO_TENSOR, Op.ALL_GATHER_COALESCED, Op.ALL_GATHER)
_SHARDS = re.compile(r"\b(?:fully_shard|FullyShardedDataParallel|FSDP|deepspeed)\b")
_NO_MODULE = re.compile(
    r"backward|all_gather|state_dict|full_tensor|save|reshard|redistribute|step$|clip_grad|prepare|init|barrier"
)
_FUNCTIONS = re.compile(r"(?:torch|nn|F|dist|np|math)\.")  # of a library, no module of the user's


@check("DD128", "data-dependent-module", severity=ERROR, family="hang", stalls=Stalls.FOREVER, specificity=65)
def examine(verdict: Verdict) -> Iterator[Finding]:
    for incident in verdict.of_kind(IncidentKind.UNFIT):
        if incident.usual is not None:
            yield _without_rows(incident, incident.usual)
    for incident in verdict.of_kind(IncidentKind.DIVERGED):
        for call, ran in _gathers(verdict, incident):
            yield _finding(verdict, incident, call, ran)
            break


def _gathers(verdict: Verdict, incident: Incident) -> Iterator[tuple[Call, str]]:
    """(the gather of a module's parameters that the other side does not answer, the module), that of the odd ranks last."""
    if incident.odd is None or incident.usual is None or incident.is_under_rank:
        return
    if incident.decision is not None and incident.decision.asks_for_the_rank:
        return
    same = incident.odd.site == incident.usual.site
    # A model is sharded where it is prepared, seldom where its modules are called.
    sharded = any(map(_SHARDS.search, verdict.recording.sources.values()))
    for call in (incident.usual, incident.odd):
        module = _module_called(verdict.recording.sources, call.site) if sharded and call.op in _GATHERS else ""
        looped = same and incident.decision is not None and incident.decision.decides_alone
        if module and (looped or (not same and _depends(verdict, incident, call))):
            yield call, module


def _depends(verdict: Verdict, incident: Incident, call: Call) -> bool:
    """Whether a condition decides about the line of the call: else the ranks parted somewhere else, or it is the other side that
    did something more."""
    decision = incident.decision
    if decision is None or decision.site.path != call.site.path or not decision.decides_alone:
        return False
    other = incident.odd if call is incident.usual else incident.usual
    is_of_other = other is not None and led_to_by(verdict.facts, decision, other)
    return led_to_by(verdict.facts, decision, call) or (bool(decision.call) and not is_of_other)


def _module_called(sources: Mapping[str, str], site: SourceLine) -> str:
    """`self.audio` of `h = h + self.audio(x)`: what the line calls, "" when that can be no module."""
    try:
        statement = ast.parse(statement_at(sources, site))
    except SyntaxError:
        return ""
    calls = [node for node in ast.walk(statement) if isinstance(node, ast.Call)]
    names = [
        ast.unparse(call.func) for call in calls if isinstance(call.func, ast.Name | ast.Attribute | ast.Subscript)
    ]
    if any(_NO_MODULE.search(name) for name in names):
        return ""
    names = [name for name in names if not _FUNCTIONS.match(name)]
    own = [name for name in names if name.startswith("self.") and name.count(".") == 1] or names
    return next((name for name in own if not name.rpartition(".")[2][:1].isupper()), "")


def _finding(verdict: Verdict, incident: Incident, call: Call, module: str) -> Finding:
    divergence, decision = incident.divergence, incident.decision
    assert divergence is not None
    assert decision is not None
    ran = next((variant.ranks for variant in divergence.variants if call.rank in variant.ranks), (call.rank,))
    rest = tuple(rank for variant in divergence.variants for rank in variant.ranks if rank not in ran)
    other = incident.odd if call is incident.usual else incident.usual
    assert other is not None
    gather = "gathers" if len(ran) == 1 else "gather"
    went_on = f", {named(rest)} went on to {short(other)}" if other.site != call.site else ""
    return Finding(
        title=f"`{module}` is sharded and ran on {named(ran)} only{went_on}",
        ranks=incident.ranks,
        confidence=LIKELY if incident.confidence is CERTAIN else incident.confidence,
        stalls=incident.stalls,
        place=decision.site,
        places=of_variants(verdict, incident),
        evidence={"module": module, "condition": decision.test, "gathered": full(call), "instead": full(other)},
        why=f"{named(ran)} {gather} the parameters of `{module}` at {at(call.site)} from all ranks; "
        + (decided_words(incident) or f"`{decision.test}` decides at {at(decision.site)}"),
        prescriptions=(
            Prescription(
                "run-on-every-rank",
                change=f"run `{module}` on every rank; where `{decision.test}` is false, run it on a dummy input, multiply its "
                "output by 0.0 and add it",
            ),
        ),
        at_ns=incident.at_ns,
        explains=(incident.key,),
    )


def _without_rows(incident: Incident, empty: Call) -> Finding:
    """All were aborted in an exchange, and some had put nothing into one of the same step."""
    assert incident.odd is not None
    inside = incident.waiting[0].calls
    return Finding(
        title=f"had no rows in {short(empty)}, and left out an exchange in backward that the others made: all failed in "
        f"{short(incident.odd)}",
        ranks=incident.ranks,
        confidence=incident.confidence,
        stalls=incident.stalls,
        place=empty.site,
        places=(
            Place(empty.site, incident.ranks, full(empty)),
            *(Place(call.site, (call.rank,), f"failed in {full(call)}") for call in inside[:8]),
        ),
        evidence={"empty": full(empty), "failed_in": [full(call) for call in inside]},
        why=f"gloo aborts a rank that is sent more than it expects; {named(call.rank for call in inside)} all failed inside one "
        "call, so nobody was lost before: the exchanges of the ranks are not the same ones. An output that is made anew for an "
        "empty input is in no graph, and its backward makes no exchange",
        prescriptions=(
            Prescription(
                "run-on-every-rank",
                change="run the module on the empty input too, or keep its output in the graph (add `x.sum() * 0.0`)",
            ),
        ),
        at_ns=incident.at_ns,
        explains=(incident.key,),
    )


SOURCE = """\
class Model(nn.Module):
    def forward(self, tokens, image=None):
        h = self.text(tokens)
        if image is not None:
            h = h + self.vision(image)
        return self.head(h)


fully_shard(model.vision)
for batch in loader:
    model(batch.tokens, batch.image).sum().backward()
"""


def _run(without_image: list[int]) -> Recording:
    script = recording(ranks=4).source("model.py", SOURCE)
    for step in range(4):
        script.collective("all_gather_into_tensor", [64], site="model.py:3 forward")
        script.collective("all_gather_into_tensor", [256], site="model.py:5 forward")
        if step == 3:
            script.skipped_by(without_image)
        script.collective("all_gather_into_tensor", [16], site="model.py:6 forward")
        script.collective("reduce_scatter_tensor", [84], site="model.py:11 <module>").step()
    return script.live()


def sick() -> Recording:
    return _run([2])


def healthy() -> Recording:
    """The same model where every batch has an image."""
    return _run([])
