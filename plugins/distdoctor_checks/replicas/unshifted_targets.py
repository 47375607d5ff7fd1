"""
DD224 unshifted-targets: a loss over the features of all ranks takes the rows of rank 0 for each rank's own.

What it means    Each rank compares its own rows with those that were gathered from all ranks, and its targets are 0, 1, 2, ...:
                 the rows of rank 0. Only there is the pair of each row where the target says.
Why it hurts     All other ranks pull their samples towards the samples of rank 0. Nothing fails, the loss falls, and the
                 features are worse with each rank that is added.
How we know      The source shows one function that gathers one of two factors and not the other, multiplies them, and gives the
                 loss targets made by arange, with no rank in it; the recording shows that several ranks gathered from that line
                 (likely).
What to do       Add the number of rows on the ranks before: torch.arange(n) + n * rank.
When it is fine  Both sides are gathered; the rank's own rows are put first; targets that are shifted, in any branch: nothing is
                 reported.
Source           facebookresearch/moco-v3, moco/builder.py; mlfoundations/open_clip, loss.py (local_loss).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.facts.collectives import Collectives, GroupCalls
from distdoctor.diagnosis.facts.sources import Sources
from distdoctor.diagnosis.finding import ERROR, LIKELY, Finding, Place, Prescription
from distdoctor.diagnosis.hang.call_chains import callers_of
from distdoctor.diagnosis.source.unshifted_targets import UnshiftedTargets, unshifted_targets
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import RankTrace, Recording
from distdoctor.recording.trace.layout import Op
from distdoctor.testing import recording as scripted

MOST_CALLS = 64  # of each rank that are looked at, the last ones
_GATHERS = [int(op) for op in (Op.ALL_GATHER, Op.ALL_GATHER_INTO_TENSOR, Op.ALL_GATHER_COALESCED)]


@check("DD224", "unshifted-targets", severity=ERROR, family="replicas", specificity=30)
def examine(calls: Collectives, sources: Sources) -> Iterator[Finding]:
    for one in unshifted_targets(sources.texts):
        groups = {
            rank: tuple(sorted(group.members))
            for rank, timeline in sorted(calls.timelines.items())
            if (group := _gathered(one, calls, timeline.log)) is not None
        }
        odd = tuple(rank for rank, members in groups.items() if rank != members[0])
        if odd:
            everybody = all(len(members) == calls.recording.world_size for members in groups.values())
            yield _finding(one if everybody else replace(one, edits=()), tuple(groups), odd)


def _gathered(one: UnshiftedTargets, calls: Collectives, log: RankTrace) -> GroupCalls | None:
    """The group among which this rank has gathered from that very line, there or in a function that it calls."""
    rows = log.calls[np.isin(log.calls["op"], _GATHERS)]
    for row in rows[-MOST_CALLS:]:
        call = log.call(row)
        for site in (call.site, *callers_of(calls, call)):
            if site.path == one.gathered.path and one.gathered.line <= site.line <= one.gathers_until:
                return calls.group_of(call)
    return None


def _finding(one: UnshiftedTargets, ranks: tuple[int, ...], odd: tuple[int, ...]) -> Finding:
    return Finding(
        title=f"targets count from 0 on every rank, and the columns are those of all ranks: {named(odd)} "
        f"{'learn' if len(odd) > 1 else 'learns'} that the pairs of its rows are those of the first rank",
        ranks=odd,
        confidence=LIKELY,
        place=one.made,
        places=(
            Place(one.made, ranks, "makes the targets"),
            Place(one.gathered, ranks, "gathers the rows of all ranks"),
            Place(one.product, ranks, "compares this rank's rows with them"),
            Place(one.loss, ranks, "the loss"),
        ),
        why=f"{named(ranks)} have gathered there; the rows of rank 0 come first, then those of rank 1, and so on, and nothing in "
        "the targets asks for the rank",
        prescriptions=(Prescription("shift-targets", edits=one.edits),),
    )


_LOSS = """\
def contrastive(q, k, temperature=0.2):
    k = torch.cat(torch.distributed.nn.functional.all_gather(k))
    logits = q @ k.T / temperature
    labels = {labels}
    return F.cross_entropy(logits, labels)
"""


def _job(labels: str) -> Recording:
    script = scripted(ranks=2).source("loss.py", _LOSS.format(labels=labels))
    for _ in range(4):
        script.collective("all_gather", [8, 16], site="loss.py:2 contrastive").step()
    return script.finished()


def sick() -> Recording:
    return _job("torch.arange(len(q))")


def healthy() -> Recording:
    return _job("torch.arange(len(q)) + len(q) * dist.get_rank()")
