"""
DD104 mismatched-dtype: ranks passed tensors of different dtypes to the same collective.

What it means    At the same sequence number of a group, ranks run the same operation on different dtypes.
Why it hurts     The backend misreads the bytes: it aborts, hangs, or returns meaningless numbers.
How we know      Same operation, same sequence number in the group, different dtypes.
What to do       Convert the tensor to one dtype on every rank before the collective.
When it is fine  all_to_all and object collectives, where the dtype belongs to the data; where nothing is reduced, bool and bytes,
                 and as many bytes viewed as 8- or 16-bit integers.
Source           torch.distributed: the tensors of one collective have the same dtype on all ranks.
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.finding import ERROR, Finding, Prescription, Stalls
from distdoctor.diagnosis.hang import alignment
from distdoctor.diagnosis.hang.in_logs import BY_TORCH, LogFacts
from distdoctor.diagnosis.hang.incident import Incident
from distdoctor.diagnosis.hang.live.rank_activity import line_of
from distdoctor.diagnosis.hang.mismatch import in_place, mismatch
from distdoctor.diagnosis.hang.verdict import Verdict
from distdoctor.diagnosis.hang.wording import at
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Recording
from distdoctor.testing import recording


@check("DD104", "mismatched-dtype", severity=ERROR, family="hang", stalls=Stalls.FOREVER, specificity=60)
def examine(verdict: Verdict | None, log: LogFacts | None) -> Iterator[Finding]:
    if log is not None and (checked := log.checked_by_torch("dtype")) is not None:
        yield checked.finding("dtype", "has another dtype", "same-dtype", BY_TORCH)
    if verdict is None:
        return
    for incident in in_place(verdict, alignment.DTYPE):
        yield _finding(verdict, incident)


def _finding(verdict: Verdict, incident: Incident) -> Finding:
    assert incident.divergence is not None
    assert incident.odd is not None
    value = {variant.call: variant.call.dtype or "unknown" for variant in incident.divergence.variants}
    change = f"convert before {incident.odd.op.word} at {at(incident.odd.site)}: tensor = tensor.to(torch.float32)"
    harm = "each side misreads the other's bytes"
    inside = _inside_a_library(verdict, incident)
    if inside:
        harm += f"; `{inside}` issues them inside a library, where they may be two different calls"
        change = (
            f"look for what {named(incident.ranks)} alone may decide inside `{inside}` ({at(incident.odd.site)}): an early "
            "stop, a callback, another batch or precision; decide it once for all ranks"
        )
    return mismatch(verdict, incident, "dtype", value, Prescription("same-dtype", change=change), harm)


def _inside_a_library(verdict: Verdict, incident: Incident) -> str:
    """The user's line that all ranks are in, where it does not name the collective: nobody sees whose tensor it was. Else ""."""
    assert incident.divergence is not None
    assert incident.odd is not None
    sites = {variant.call.site for variant in incident.divergence.variants}
    line = line_of(verdict.recording.sources, incident.odd.site).strip()
    named_there = incident.odd.op.word.rpartition("_")[2] in line.lower()  # `gather` of all_gather
    line = line if len(line) <= 60 else f"...{line[-57:]}"  # its end has the call that all of it leads to
    return line if len(sites) == 1 and not named_there else ""


def sick() -> Recording:
    script = recording(ranks=4)
    for step in range(4):
        script.collective("all_reduce", [32], site="train.py:41 reduce_loss")
        if step == 2:
            script.instead(0, dtype="float16")
        script.step()
    return script.live()


def healthy() -> Recording:
    """One dtype after the other, the same on every rank."""
    script = recording(ranks=4)
    for dtype in ("float32", "bfloat16", "int64"):
        script.collective("all_reduce", [32], dtype=dtype, site="train.py:41 reduce_loss").step()
    return script.live()
