"""
DD105 mismatched-reduce-op: ranks pass different reduce operations: nothing hangs, but the result is wrong.

What it means    The members of a group reduce one tensor with different operations, and each rank computes its own result.
Why it hurts     No error, no hang: the ranks hold different results from here on.
How we know      Same operation, same sequence number in the group, but the callers passed different reductions. A reduction
                 that could not be seen (inside DDP's reducer) matches any other.
What to do       Pass the same ReduceOp on every rank.
When it is fine  Different reductions at different sequence numbers.
Source           torch.distributed.ReduceOp.
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.finding import ERROR, Finding, Prescription
from distdoctor.diagnosis.hang import alignment
from distdoctor.diagnosis.hang.incident import Incident
from distdoctor.diagnosis.hang.kinds import IncidentKind
from distdoctor.diagnosis.hang.mismatch import mismatch
from distdoctor.diagnosis.hang.verdict import Verdict
from distdoctor.diagnosis.hang.wording import at
from distdoctor.recording.recording import Recording
from distdoctor.testing import recording


@check("DD105", "mismatched-reduce-op", severity=ERROR, family="hang", specificity=80)
def examine(verdict: Verdict) -> Iterator[Finding]:
    for incident in verdict.of_kind(IncidentKind.DIVERGED):
        if incident.differs == alignment.REDUCTION:
            yield _finding(verdict, incident)


def _finding(verdict: Verdict, incident: Incident) -> Finding:
    assert incident.divergence is not None
    assert incident.odd is not None
    value = {variant.call: variant.call.reduce_op.name.lower() for variant in incident.divergence.variants}
    cure = Prescription(
        "same-reduce-op",
        change=f"use the same reduction on every rank at {at(incident.odd.site)}, for example op=dist.ReduceOp.SUM",
    )
    return mismatch(
        verdict,
        incident,
        "reduction",
        value,
        cure,
        "each rank silently combines the values in its own way",
    )


def sick() -> Recording:
    script = recording(ranks=4)
    for step in range(4):
        script.collective("all_reduce", [32], reduce_op="sum", site="train.py:41 reduce_loss")
        if step == 2:
            script.instead(1, reduce_op="avg")
        script.step()
    return script.finished()


def healthy() -> Recording:
    """SUM and MAX in turn, and a reduction that could not be seen on one rank."""
    script = recording(ranks=4)
    for _ in range(4):
        script.collective("all_reduce", [32], reduce_op="sum", site="train.py:41 reduce_loss").instead(
            1, reduce_op="unseen"
        )
        script.collective("all_reduce", [1], reduce_op="max", site="train.py:42 reduce_loss").step()
    return script.finished()
