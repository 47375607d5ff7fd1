"""
DD217 detached-gather: the loss is computed from features gathered by a collective that autograd does not track.

What it means    dist.all_gather fills plain buffers, so autograd does not know where their contents came from. A contrastive
                 loss over all ranks' features then learns from its own side only, or not at all.
Why it hurts     Part of the gradient is missing, without an error. The loss falls more slowly and ends higher.
How we know      The gathered input requires a gradient, gradients are enabled, and the graph that backward starts from holds
                 the collective's output bits without a gradient. `cut`: the loss has no other path to the features. Where
                 the source detached the features for the gathering and trains on the same ones as well: a note, possible.
What to do       Gather with torch.distributed.nn.functional.all_gather, or put this rank's own features back into the gathered
                 list.
When it is fine  Gathering for a metric or under no_grad; a list into which own features are put back; targets that are meant
                 to be constants (a stop-gradient, as in BYOL).
Source           torch.distributed.all_gather: "not differentiable"; torch.distributed.nn.functional.all_gather is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.finding import CERTAIN, ERROR, LIKELY, NOTE, POSSIBLE, WARNING, Finding, Place, Prescription
from distdoctor.diagnosis.replicas.gradients import Gradients
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Recording, SourceLine
from distdoctor.recording.trace.events import DETACHED, DetachedGather


@check("DD217", "detached-gather", severity=ERROR, stands_alone=True)
def examine(gradients: Gradients) -> Iterator[Finding]:
    seen: dict[tuple[SourceLine, str, bool, int], list[tuple[int, int, int]]] = defaultdict(list)
    for rank, own in gradients.ranks.items():
        for one in own.events(DetachedGather):
            seen[one.site, one.operation, one.reached, one.nbytes].append((rank, one.step, one.at_ns))
    for (site, op, reached, nbytes), events in seen.items():
        ranks = tuple(sorted({rank for rank, _, _ in events}))
        cut, meant = not reached, op.endswith(DETACHED)
        word, gathered = op.removesuffix(DETACHED), "detached features" if meant else "features without gradients"
        missing = "everything before the gather" if cut else "the gathered side of the loss"
        yield Finding(
            title=f"step {min(step for _, step, _ in events)}: {word} gathered {gathered} for the loss: "
            f"the gradient of {missing} is missing",
            ranks=ranks,
            place=site,
            places=(
                Place(site, ranks, f"{op}{'' if meant else ' of features that require a gradient'}, {nbytes:,} bytes"),
            ),
            evidence={"step": min(step for _, step, _ in events), "op": word, "bytes": nbytes, "missing": missing},
            why=f"the output of {word} on {named(ranks)} is in the graph of the loss without a gradient"
            + ("; no other path leads from the loss to the features" if cut else ", including this rank's own part"),
            prescriptions=(Prescription("gather-with-gradient"),),
            severity=ERROR if cut else NOTE if meant else WARNING,
            confidence=CERTAIN if cut else POSSIBLE if meant else LIKELY,
            at_ns=min(at_ns for _, _, at_ns in events),
        )


def sick() -> Recording:
    from distdoctor.testing.gradients import trained_job

    job = trained_job(2).initial()
    job.note(DetachedGather("all_gather", reached=False, step=1, nbytes=4096), site="train.py:28 train")
    return job.step().recording()


def healthy() -> Recording:
    from distdoctor.testing.gradients import trained_job

    return trained_job(2).initial().step().step().recording()
