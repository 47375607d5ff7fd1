"""
DD106 mismatched-root: broadcast, reduce, gather or scatter with different src or dst on different ranks.

What it means    The members of a group disagree on which rank sends or which rank collects.
Why it hurts     gloo hangs; NCCL silently delivers another rank's data.
How we know      Same operation, same sequence number in the group, different roots.
What to do       Pass the same src (or dst) on every rank. src and dst are global ranks; group_src and group_dst are ranks
                 within the group.
When it is fine  A root that rotates, as long as it is the same on every rank.
Source           torch.distributed.broadcast: src is the source rank on the global process group.
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.finding import ERROR, Finding, Prescription, Stalls
from distdoctor.diagnosis.hang import alignment
from distdoctor.diagnosis.hang.incident import Incident
from distdoctor.diagnosis.hang.live.apart import RanksApart
from distdoctor.diagnosis.hang.live.stack_waits import line_of
from distdoctor.diagnosis.hang.mismatch import in_place, mismatch
from distdoctor.diagnosis.hang.played import agrees_with_root
from distdoctor.diagnosis.hang.verdict import Verdict
from distdoctor.diagnosis.hang.wording import at
from distdoctor.diagnosis.source.call_edits import keyword_of, node_replaced, only_call
from distdoctor.diagnosis.source.edits import Edit
from distdoctor.diagnosis.source.rank_guard import is_about_rank
from distdoctor.recording.recording import Recording
from distdoctor.testing import recording


@check(
    "DD106",
    "mismatched-root",
    severity=ERROR,
    family="hang",
    formerly=("DD126 ranks-apart",),
    stalls=Stalls.FOREVER,
    specificity=60,
)
def examine(verdict: Verdict | None, apart: RanksApart | None) -> Iterator[Finding]:
    if apart is not None and apart.sides is not None and apart.sides.is_same_call:
        one = apart.sides.odd[0]
        yield apart.sides.finding("same-root", f"give {one.call} at {line_of(one)} the same src/dst on every rank")
    if verdict is None:
        return
    for incident in in_place(verdict, alignment.ROOT):
        yield _finding(verdict, incident)


def _finding(verdict: Verdict, incident: Incident) -> Finding:
    assert incident.divergence is not None
    assert incident.odd is not None
    value = {variant.call: f"rank {variant.call.root}" for variant in incident.divergence.variants}
    word = "dst" if incident.odd.op.word in ("reduce", "gather") else "src"
    right = incident.usual.root if incident.usual is not None else 0
    cure = Prescription(
        "same-root",
        change=f"pass the same {word} on every rank at {at(incident.odd.site)}, for example {word}={right}",
        edits=_edits(verdict, incident, word, right),
    )
    return mismatch(verdict, incident, "root", value, cure, "the root that the others wait for never sends")


def _edits(verdict: Verdict, incident: Incident, word: str, right: int) -> tuple[Edit, ...]:
    """The root of the others in the place of an expression that is about the rank, in the one line that they all call, where
    the calls on record then agree."""
    assert incident.odd is not None
    site, sources = incident.odd.site, verdict.recording.sources
    call = only_call(sources, site, incident.odd.op.word)
    given = keyword_of(call, word) if call is not None else None
    if incident.divergence is None or given is None or not is_about_rank(given.value):
        return ()
    parted = incident.divergence
    one_line = all(variant.call.site == site for variant in parted.variants)
    if not one_line or right < 0 or not agrees_with_root(verdict.facts, parted.group, parted.number, site, right):
        return ()
    return (node_replaced(site.path, given, f"{word}={right}"),)


def sick() -> Recording:
    script = recording(ranks=4)
    for step in range(4):
        script.collective("broadcast", [32], root=0, site="train.py:41 share")
        if step == 2:
            script.instead(3, root=3)
        script.step()
    return script.live()


def healthy() -> Recording:
    """The root goes round."""
    script = recording(ranks=4)
    for step in range(8):
        script.collective("gather", [32], root=step % 4, site="train.py:41 share").step()
    return script.live()
