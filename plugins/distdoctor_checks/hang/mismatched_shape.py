"""
DD103 mismatched-shape: ranks passed tensors of different sizes to a collective that requires equal sizes.

What it means    all_reduce, broadcast, all_gather and similar collectives move the same number of elements on every rank. Here
                 the numbers differ.
Why it hurts     gloo hangs or aborts an innocent rank ("op.preamble.length <= op.nbytes"); NCCL hangs or reads past the end of
                 the shorter tensor; if the call completes, the numbers are wrong.
How we know      Same operation, same sequence number in the group, different numbers of elements. Different shapes with the
                 same number of elements count as equal.
What to do       Pad to the largest size (all_reduce the size with MAX first), or use an operation that takes per-rank sizes.
When it is fine  all_to_all with splits, object collectives, all_gather and reduce_scatter of lists on NCCL, gather of objects.
Source           torch.distributed.all_reduce: "tensors should have the same size on all ranks".
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.finding import ERROR, LIKELY, POSSIBLE, Finding, Place, Prescription, Stalls
from distdoctor.diagnosis.hang import alignment
from distdoctor.diagnosis.hang.in_logs import BY_TORCH, LogFacts, from_line, who
from distdoctor.diagnosis.hang.incident import Incident
from distdoctor.diagnosis.hang.kinds import IncidentKind
from distdoctor.diagnosis.hang.mismatch import in_place, mismatch
from distdoctor.diagnosis.hang.verdict import Verdict
from distdoctor.diagnosis.hang.wording import at, full, group_words, short
from distdoctor.recording.clue import Clue, ClueKind
from distdoctor.recording.recording import Recording
from distdoctor.recording.trace.layout import CallFlag
from distdoctor.testing import recording

IN_LOG = 60  # how specific it is of what a job log shows


@check(
    "DD103",
    "mismatched-shape",
    severity=ERROR,
    family="hang",
    formerly=("DD127 told-by-the-log",),
    stalls=Stalls.FOREVER,
    specificity=60,
)
def examine(verdict: Verdict | None, log: LogFacts | None) -> Iterator[Finding]:
    if log is not None:
        yield from _by_log(log)
    if verdict is None:
        return
    for incident in in_place(verdict, alignment.SHAPE):
        yield _finding(verdict, incident)
    for incident in verdict.of_kind(IncidentKind.UNFIT):
        yield _unfit(incident)


def _unfit(incident: Incident) -> Finding:
    """Of an exchange the sizes may differ as they like, but what one sends another has to expect."""
    assert incident.odd is not None
    inside = incident.waiting[0].calls
    return Finding(
        title=f"all failed in {short(incident.odd)}{group_words(incident)}: what a rank is sent is not what it expects",
        ranks=tuple(call.rank for call in inside),
        confidence=POSSIBLE,
        stalls=incident.stalls,
        place=incident.odd.site,
        places=tuple(Place(call.site, (call.rank,), full(call)) for call in inside[:8]),
        evidence={"calls": [full(call) for call in inside]},
        why="gloo aborts a rank that is sent more than it expects, and nobody had gone before: the splits do not fit, or the "
        "ranks are in different exchanges",
        prescriptions=(
            Prescription(
                "same-shape",
                change="exchange the splits first (all_to_all_single of the counts), and count the exchanges of a step on each "
                "rank: one that leaves one out is a call ahead of the others",
            ),
        ),
        at_ns=incident.at_ns,
        explains=(incident.key,),
        undecided=True,
    )


def _by_log(log: LogFacts) -> Iterator[Finding]:
    if (checked := log.checked_by_torch("shape")) is not None:
        yield checked.finding("shape", "has another shape", "same-shape", BY_TORCH)
    if log.other_sizes is not None:
        yield log.other_sizes.finding("size", "has another size", "same-shape", IN_LOG)
    else:
        yield from (_of_preamble(clue) for clue in log.lines(ClueKind.SIZES)[:1])


def _of_preamble(clue: Clue) -> Finding:
    came, expected = clue.numbers
    found = from_line(
        clue,
        f"received {came} bytes where it expected {expected}: a peer issued another size or another operation",
        who(clue),
        LIKELY,
        f"gloo aborts the receiver, which may be innocent: {came} bytes are {came // 4} float32, "
        f"{expected} are {expected // 4}",
        Prescription(
            "same-shape", change="print the shapes of all ranks before this call, or run it under distdoctor run"
        ),
        IN_LOG,
    )
    found.evidence.update({"bytes came": came, "bytes expected": expected})
    return found


def _finding(verdict: Verdict, incident: Incident) -> Finding:
    assert incident.divergence is not None
    assert incident.odd is not None
    value = {variant.call: variant.call.shape or "[]" for variant in incident.divergence.variants}
    cure = Prescription(
        "same-shape",
        change=f"give {incident.odd.op.word} at {at(incident.odd.site)} the same size on every rank: pad or truncate it",
    )
    return mismatch(verdict, incident, "shape", value, cure, "each rank transfers as many bytes as its own tensor has")


def sick() -> Recording:
    script = recording(ranks=4)
    for step in range(4):
        script.collective("all_reduce", [32, 10], site="train.py:41 reduce_loss")
        if step == 2:
            script.instead(3, shape="[17, 10]")
        script.step()
    return script.live()


def healthy() -> Recording:
    """Unequal splits of all_to_all, pickled objects of any size, and a scalar that is a vector of one elsewhere."""
    script = recording(ranks=4)
    for step in range(4):
        script.collective("all_to_all_single", [32], site="train.py:41 route").instead(1, shape="[7]")
        script.collective("all_gather_into_tensor", [50], site="train.py:43 gather", flags=CallFlag.OBJECT)
        script.instead(2, shape=f"[{60 + step}]")
        script.collective("all_reduce", [1], site="train.py:45 reduce_loss").instead(3, shape="[]")
        script.step()
    return script.live()
