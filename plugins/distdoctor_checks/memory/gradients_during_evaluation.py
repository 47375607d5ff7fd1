"""
DD411 gradients-during-evaluation: an evaluation records an autograd graph that no backward uses.

What it means    model.eval() changes dropout and normalization but does not disable gradients. Without no_grad, every
                 evaluation forward keeps its activations.
Why it hurts     Evaluation needs as much memory as training and more time than necessary; it is often what runs out of memory,
                 because its batches are larger.
How we know      Between model.eval() and model.train() autograd recorded operations, batches were read, and neither backward
                 nor autograd.grad was called. The bytes that the graph kept were counted while a batch's outputs were still
                 alive. Without a DataLoader: what variables kept when the evaluation ended, in two evaluations, and the next
                 step's backward did not go through it (likely). Nothing is reported unless a variable was seen to hold a graph:
                 autocast records its casts without gradients too.
What to do       Put `with torch.inference_mode():` (or no_grad) around the evaluation, or use it as a decorator.
When it is fine  Attacks, attributions and fine-tuning in eval mode request gradients: nothing is reported.
Source           torch.no_grad and torch.inference_mode; nn.Module.eval.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.finding import CERTAIN, LIKELY, WARNING, Finding, Place, Prescription
from distdoctor.diagnosis.memory.memory import Evaluation, Memory, mib
from distdoctor.diagnosis.source.call_edits import loop_within
from distdoctor.diagnosis.source.keeping_line import keeping_line
from distdoctor.recording.recording import Recording
from distdoctor.recording.trace.events import Evaluated

TWICE = 2  # evaluations, where no batches were counted
LEAST_OPERATIONS = 8  # a norm of the weights is computed with less


@check(
    "DD411", "gradients-during-evaluation", severity=WARNING, live=False, stands_alone=True
)  # gradients may still be asked for
def examine(memory: Memory) -> Iterator[Finding]:
    found: dict[str, dict[int, Evaluation]] = {}
    for rank in memory.each():
        used = {one.site for one in rank.evaluations if one.how == "used"}
        ends = Counter(one.site for one in rank.evaluations if one.how == "over" and not one.batches)
        for one in rank.evaluations:
            if not one.batches and ends[one.site] < TWICE:
                continue  # a first look at a model that is not trained yet
            if one.site not in used and one.bytes and one.nodes >= max(LEAST_OPERATIONS, 2 * one.batches):
                best = found.setdefault(str(one.site), {}).get(rank.rank)
                if best is None or (one.how == "over", one.bytes) > (best.how == "over", best.bytes):
                    found[str(one.site)][rank.rank] = one
    for by_rank in found.values():
        yield _finding(memory, by_rank)


def _finding(memory: Memory, by_rank: dict[int, Evaluation]) -> Finding:
    ranks = tuple(sorted(by_rank))
    one = max(by_rank.values(), key=lambda each: (each.bytes, each.batches))
    keeping = keeping_line(memory.recording.sources, one.site, one.variable) if "." in one.variable else None
    keeps = (Place(keeping.site, ranks, keeping.how),) if keeping is not None else ()
    kept = f": `{one.variable}` keeps {mib(one.bytes)}" + (" of each batch" if one.batches else " to its end")
    return Finding(
        title=f"evaluation records an autograd graph that no backward uses{kept}",
        ranks=ranks,
        place=one.site,
        places=(Place(one.site, ranks, "evaluates with gradients enabled"), *keeps),
        evidence={
            "operations": one.nodes,
            "bytes_per_batch": one.bytes,
            "batches": one.batches,
            "variable": one.variable,
        },
        why=f"{one.nodes} autograd nodes were recorded while the model was in eval mode"
        + (f", over {one.batches} batches" if one.batches else "")
        + ", and neither backward nor autograd.grad was called",
        prescriptions=(
            Prescription(
                "evaluate-without-gradients",
                edits=loop_within(memory.recording.sources, one.site, "with torch.no_grad():"),
                effect=f"{mib(one.bytes)} less at the evaluation's peak, as counted in its graph",
            ),
        ),
        confidence=CERTAIN if one.how == "over" and one.batches else LIKELY,
        at_ns=one.at_ns,
    )


def sick() -> Recording:
    from distdoctor.testing.memory import memory_job

    told = Evaluated("output", "over", 40, 8 << 20, 4)
    return memory_job(2).trains(8).note(told, site="train.py:52 validate").recording()


def healthy() -> Recording:
    """An attack: the graph was asked for after all."""
    from distdoctor.testing.memory import memory_job

    running = Evaluated("output", "running", 40, 8 << 20, 4)
    job = memory_job(2).trains(8).note(running, site="train.py:52 validate")
    return job.note(replace(running, how="used"), site="train.py:52 validate").recording()
