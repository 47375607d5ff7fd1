"""
DD121 unused-parameters: DDP waits for gradients that never arrive, because some parameters did not contribute to the loss.

What it means    The reducer of DistributedDataParallel waits for the gradient of every parameter. Parameters that the forward
                 pass did not use, on this rank or on all, never get one.
Why it hurts     The next forward raises "Expected to have finished reduction in the prior iteration"; if only one rank took the
                 branch, the others hang in an all_reduce.
How we know      DDP's exception ended the rank and names the parameters. Before it is raised, the gradients show it: some are
                 None on every rank at the optimizer step, and others were left unaveraged.
What to do       Use every parameter on every rank, or pass find_unused_parameters=True.
When it is fine  find_unused_parameters=True, and parameters with requires_grad=False.
Source           torch/nn/parallel/distributed.py and reducer.cpp (torch 2.11-2.15).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.finding import ERROR, LIKELY, Finding, Place, Prescription, Stalls
from distdoctor.diagnosis.hang.in_logs import LogFacts, from_own_error
from distdoctor.diagnosis.hang.incident import Incident
from distdoctor.diagnosis.hang.kinds import IncidentKind
from distdoctor.diagnosis.hang.played import agrees_without_reductions
from distdoctor.diagnosis.hang.verdict import Verdict
from distdoctor.diagnosis.hang.wording import by_site, of_variants
from distdoctor.diagnosis.replicas.divergence import ReplicaDivergence, ReplicaDivergences
from distdoctor.diagnosis.replicas.gradients import WRAPPER
from distdoctor.diagnosis.replicas.rank_gradients import Update
from distdoctor.diagnosis.replicas.tensor_differences import GRADS
from distdoctor.diagnosis.replicas.unreduced import left_out, left_out_last
from distdoctor.diagnosis.replicas.wording import evidence, places, which
from distdoctor.diagnosis.source.branches import are_never_called, branch_line
from distdoctor.diagnosis.source.statement_edits import wrapper_told
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Recording, SourceLine
from distdoctor.recording.trace.events import Wrapped
from distdoctor.recording.trace.layout import CallFlag
from distdoctor.testing import recording

TOLD = 60  # the reducer says so itself: gradients that differ in that step only follow from it
RAISED = "Expected to have finished reduction in the prior iteration"
MESSAGE = (
    "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one. This error "
    "indicates that your module has parameters that were not used in producing loss. "
    "Parameter indices which did not receive grad for rank 1: 4 5"
)


@check("DD121", "unused-parameters", severity=ERROR, family="hang", stalls=Stalls.FOREVER, specificity=30)
def examine(verdict: Verdict | None, partings: ReplicaDivergences | None, log: LogFacts | None) -> Iterator[Finding]:
    if log is not None and log.own_error is not None and RAISED in log.own_error.words:
        yield from_own_error(log, _title(_in_words(log.own_error.words)), Prescription("find-unused-parameters"))
    if verdict is None:
        return
    told = [
        one for one in verdict.of_kind(IncidentKind.FAILED) if one.ending is not None and RAISED in one.ending.words
    ]
    for incident in told:
        known = left_out_last(partings.gradients, incident.ranks[0]) if partings else ()
        found = _finding(verdict, incident, known)
        yield replace(found, explains=(*found.explains, *_left_unaveraged(incident, partings)))
    for incident in verdict.of_kind(IncidentKind.DIVERGED) if partings else ():
        yield from _where_ranks_wait(verdict, incident, partings)
    for parting in partings.found if partings and not told else ():
        assert partings is not None
        averaged = parting.what == GRADS and parting.peers.by == WRAPPER
        names = left_out(parting.peers, parting.step, partings.gradients) if averaged else ()
        if names:
            yield _before_it_raises(verdict, parting, names)


def _where_ranks_wait(verdict: Verdict, incident: Incident, partings: ReplicaDivergences | None) -> Iterator[Finding]:
    """Ranks that made their optimizer step without the reduction of their gradients, in which the others wait."""
    odd, usual = incident.odd, incident.usual
    if partings is None or odd is None or usual is None or incident.divergence is None:
        return
    for mine, other in ((odd, usual), (usual, odd)):
        ranks = next(one.ranks for one in incident.divergence.variants if mine.rank in one.ranks)
        names = left_out_last(partings.gradients, mine.rank)
        if other.flags & CallFlag.NATIVE and not mine.flags & CallFlag.NATIVE and mine.step > other.step and names:
            yield _never_reduced(verdict, incident, ranks, names)


def _never_reduced(verdict: Verdict, incident: Incident, ranks: tuple[int, ...], names: tuple[str, ...]) -> Finding:
    line = branch_line(verdict.recording.sources, names)
    waiting = next(one for one in (incident.usual, incident.odd) if one is not None and one.rank not in ranks)
    return Finding(
        title=f"{_several(names)} did not contribute to the loss, so DDP never issued the {waiting.op.word} "
        f"#{waiting.number} in which the others wait",
        ranks=ranks,
        confidence=LIKELY,
        stalls=incident.stalls,
        place=line or waiting.site,
        places=(*((Place(line, ranks, "the branch"),) if line else ()), *of_variants(verdict, incident)),
        evidence={"parameters": list(names[:16])},
        why=f"{len(names)} gradients were None at the optimizer step of {named(ranks)}; the reducer waits for them and does not "
        "reduce the buckets that they share with others",
        prescriptions=(_cure(verdict, line, names),),
        at_ns=incident.at_ns,
        explains=(incident.key,),
        specificity=TOLD,
    )


def _left_unaveraged(incident: Incident, partings: ReplicaDivergences | None) -> Iterator[str]:
    """The divergences of gradients that follow from it: of the last step, whose reduction was never finished."""
    for parting in partings.found if partings else ():
        last = max((update.step for rank in incident.ranks for update in _updates(partings, rank)), default=0)
        if parting.what == GRADS and parting.peers.by == WRAPPER and parting.step == last:
            yield parting.key


def _updates(partings: ReplicaDivergences | None, rank: int) -> list[Update]:
    own = partings.gradients.ranks.get(rank) if partings else None
    return own.updates if own is not None else []


def _before_it_raises(verdict: Verdict, parting: ReplicaDivergence, names: tuple[str, ...]) -> Finding:
    line = branch_line(verdict.recording.sources, names)
    return Finding(
        title=f"{parting.when}: {_several(names)} did not contribute to the loss, so DDP left {which(parting)} unaveraged",
        ranks=parting.peers.ranks,
        stalls=Stalls.NO,
        place=line or parting.site,
        places=(*((Place(line, parting.peers.ranks, "the branch"),) if line else ()), *places(parting)),
        evidence=evidence(parting, parameters=list(names[:16])),
        why=f"{len(names)} gradients are None on every rank; the reducer waits for them and has not finished the buckets that "
        "they share with others. The next forward will raise",
        prescriptions=(_cure(verdict, line, names),),
        at_ns=parting.at_ns,
        explains=(parting.key,),
    )


def _cure(verdict: Verdict, branch: SourceLine, names: tuple[str, ...]) -> Prescription:
    """The search for unused parameters, where a branch leaves them out or nothing calls their modules. What a forward returns and
    the loss does not use counts as used: there the search does not help."""
    logs = verdict.recording.ranks.values()
    wrapped = {event.site for log in logs for event in log.noted(Wrapped) if not event.searches_unused}
    unused = bool(branch) or are_never_called(verdict.recording.sources, names)
    if not unused or len(wrapped) != 1 or not agrees_without_reductions(verdict.facts):
        return Prescription("find-unused-parameters")
    edits = wrapper_told(verdict.recording.sources, wrapped.pop(), "find_unused_parameters", "True")
    return Prescription("find-unused-parameters", edits=edits)


def _several(names: tuple[str, ...]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _in_words(exception: str) -> str:
    """The parameters that the reducer names, by name or number; "" where it names none."""
    indices = re.search(r"did not receive grad for rank \d+: ([\d ]+)", exception)
    names = re.search(r"did not receive grad for rank \d+: ([A-Za-z_][\w., ]+)", exception)
    return names[1].strip() if names else f"number {', '.join(indices[1].split())}" if indices else ""


def _title(words: str) -> str:
    return f"DDP missed gradients of parameters {words}" if words else "DDP missed gradients of some parameters"


def _finding(verdict: Verdict, incident: Incident, known: tuple[str, ...]) -> Finding:
    ending = incident.ending
    assert ending is not None
    words = _several(known) if known else _in_words(ending.words)
    line = branch_line(verdict.recording.sources, known)
    stuck = [call for wait in incident.waiting for call in wait.calls]
    return Finding(
        title=_title(words),
        ranks=incident.ranks,
        stalls=incident.stalls,
        place=ending.site,
        places=(
            *((Place(line, incident.ranks, "the branch"),) if line else ()),
            Place(ending.site, incident.ranks, "the forward pass after the one that did not use them"),
            *by_site(verdict, stuck),
        ),
        evidence={"exception": ending.words[:500], "parameters": words, "traceback": ending.traceback},
        why="the reducer waits for the gradient of every trainable parameter; these did not contribute to the previous loss",
        prescriptions=(_cure(verdict, line, known),),
        at_ns=incident.at_ns,
        explains=(incident.key,),
        specificity=TOLD,
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
