"""
DD121 unused-parameters: DDP waits for gradients that never come, because some parameters took no part in the loss.

What it means    The reducer of DistributedDataParallel waits for the gradient of every parameter. Those that the
                 forward left out, on this rank or on all, never get one.
Why it hurts     The next forward raises "Expected to have finished reduction in the prior iteration"; when only one
                 rank took the branch, the others hang in an all_reduce.
How we know      The exception of DDP that ended the rank, with the indices of the parameters that it names.
What to do       Use every parameter on every rank, or pass find_unused_parameters=True.
When it is fine  find_unused_parameters=True, and parameters with requires_grad=False.
Source           torch/nn/parallel/distributed.py and reducer.cpp (torch 2.11-2.15).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.finding import ERROR, Cure, Finding, Place
from distdoctor.diagnosis.verdict import Event, Verdict
from distdoctor.diagnosis.words import by_site
from distdoctor.recording.recording import Recording
from distdoctor.testing import recording

MESSAGE = (
    "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one. This error "
    "indicates that your module has parameters that were not used in producing loss. "
    "Parameter indices which did not receive grad for rank 1: 4 5"
)


@check("DD121", "unused-parameters", severity=ERROR, family="hang")
def examine(verdict: Verdict) -> Iterator[Finding]:
    for event in verdict.told("DD121"):
        yield _finding(verdict, event)


def _finding(verdict: Verdict, event: Event) -> Finding:
    ending = event.ending
    assert ending is not None
    indices = re.search(r"did not receive grad for rank \d+: ([\d ]+)", ending.words)
    names = re.search(r"did not receive grad for rank \d+: ([A-Za-z_][\w., ]+)", ending.words)
    which = names[1].strip() if names else f"number {', '.join(indices[1].split())}" if indices else ""
    stuck = [call for wait in event.waiting for call in wait.calls]
    return Finding(
        title=f"DDP missed gradients of parameters {which}".rstrip()
        if which
        else "DDP missed gradients of some parameters",
        ranks=event.ranks,
        place=ending.site,
        places=(
            Place(ending.site, event.ranks, "the forward after the one that left them out"),
            *by_site(verdict, stuck),
        ),
        evidence={"exception": ending.words[:500], "parameters": which, "traceback": ending.traceback},
        why="the reducer waits for the gradient of every parameter that wants one; these took no part in the loss before",
        cures=(Cure("find-unused-parameters"),),
        at_ns=event.at_ns,
    )


def sick() -> Recording:
    script = recording(ranks=2)
    script.collective("all_reduce", [4096], native=True, site="train.py:33 train").step()
    return script.raises(1, MESSAGE, site="train.py:31 train").finished(survivors="fail")


def healthy() -> Recording:
    """Another reason to fail in the forward is DD110's."""
    script = recording(ranks=2)
    script.collective("all_reduce", [4096], native=True, site="train.py:33 train").step()
    return script.raises(
        1, "RuntimeError: mat1 and mat2 shapes cannot be multiplied", site="train.py:31 train"
    ).finished()
