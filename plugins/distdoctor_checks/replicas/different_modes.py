"""
DD223 different-modes: a model trains in eval mode on some ranks, or on all of them since an evaluation.

What it means    model.eval() was called, and model.train() was not called again: dropout is off, and batch normalization
                 computes with the statistics that it has. Where an evaluation runs on one rank only, that rank alone goes on so.
Why it hurts     The ranks average gradients of different functions, or all train without the noise that was asked for. Losses
                 look fine, often better than before.
How we know      Layers whose output depends on the mode (dropout, batch normalization, recurrent layers with dropout) are
                 counted at sampled steps, on replicas and on ranks that train the same layers apart. In two such steps or more
                 they are in training mode on one rank and in eval mode on another: likely. Or all of them were in training mode
                 at first, and since some step the whole model is in eval mode on every rank: likely.
What to do       Call model.train() at the end of every evaluation, on the module that was put into eval mode, or at the
                 beginning of every epoch.
When it is fine  Layers that are frozen in eval mode from the first step on, on all ranks alike; those of a model that is switched
                 now and then, and back: not reported.
Source           torch.nn.Module.eval: "This has an effect only on certain modules."
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.facts.sources import Sources
from distdoctor.diagnosis.finding import ERROR, LIKELY, WARNING, Finding, Place, Prescription
from distdoctor.diagnosis.replicas.gradients import OBSERVED, Gradients, ReplicaGroup
from distdoctor.diagnosis.replicas.wording import line_with
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Recording, SourceLine
from distdoctor.recording.trace.events import MOST_MODES, ModesSeen

FEWEST = 2  # steps that were looked at


@check("DD223", "different-modes", severity=ERROR, family="replicas", at_most=LIKELY)
def examine(gradients: Gradients, sources: Sources) -> Iterator[Finding]:
    told: set[tuple[int, ...]] = set()
    for peers in (*gradients.peers, *_alike(gradients)):
        seen = {rank: _seen(gradients, rank, peers.optimizer) for rank in peers.ranks if rank in gradients.ranks}
        if peers.ranks in told or len(seen) < 2 or not all(seen.values()):
            continue
        until = min(one[-1].step if len(one) >= MOST_MODES else math.inf for one in seen.values())
        steps = [step for step in _steps(gradients, peers) if step <= until]  # behind that nobody has noted any more
        apart = [step for step in steps if len({_at(one, step)[:2] for one in seen.values()}) > 1]
        if len(apart) >= FEWEST:
            told.add(peers.ranks)
            yield _apart(peers, {rank: _at(one, apart[0]) for rank, one in seen.items()}, apart, sources, _site(seen))
            continue
        first = next(iter(seen.values()))
        begins = _stays_in_eval_mode(first, steps)
        if begins and not apart and all(_stays_in_eval_mode(one, steps) == begins for one in seen.values()):
            told.add(peers.ranks)
            yield _since(peers, first[-1], steps[0], begins, sources)


def _alike(gradients: Gradients) -> Iterator[ReplicaGroup]:
    """Ranks of which nothing tells that they agree, as in local SGD, and which train the same layers all the same."""
    optimizers = sorted(
        {update.optimizer for update in gradients.every_update()} - {p.optimizer for p in gradients.peers}
    )
    for optimizer in optimizers:
        held = {
            rank: frozenset((t.name, t.shape) for t in own.tensors.values() if t.optimizer == optimizer)
            for rank, own in gradients.ranks.items()
        }
        if len(held) > 1 and len({*held.values()}) == 1 and all(held.values()):
            yield ReplicaGroup(tuple(sorted(held)), optimizer, OBSERVED, ())


def _seen(gradients: Gradients, rank: int, optimizer: int) -> Sequence[ModesSeen]:
    return sorted(
        (e for e in gradients.ranks[rank].events(ModesSeen) if e.optimizer == optimizer), key=lambda e: e.step
    )


def _steps(gradients: Gradients, peers: ReplicaGroup) -> list[int]:
    """The steps that all of these ranks have looked at."""
    looked = [{u.step for u in own if u.digested and u.step} for own in gradients.updates(peers).values()]
    return sorted(set.intersection(*looked)) if looked else []


def _at(seen: Sequence[ModesSeen], step: int) -> tuple[int, int, bool]:
    """How many layers were in training mode in that step, how many in eval mode, and whether a whole model was."""
    last = next((one for one in reversed(seen) if one.step <= step), seen[0])
    return last.training, last.evaluating, last.whole


def _stays_in_eval_mode(seen: Sequence[ModesSeen], steps: Sequence[int]) -> int:
    """The step since which the whole model is in eval mode, when it was in training mode before; 0 where it is not."""
    first, later = seen[0], seen[1:]
    all_on = first.training and not first.evaluating and not first.whole
    if not later or not all_on or not all(one.whole and not one.training for one in later):
        return 0
    return later[0].step if sum(1 for step in steps if step >= later[0].step) >= FEWEST else 0


def _site(seen: dict[int, Sequence[ModesSeen]]) -> SourceLine:
    return next((one[0].site for one in seen.values() if one[0].site), SourceLine())


def _put_into_eval_mode(sources: Sources, step: SourceLine) -> SourceLine:
    """The line that calls eval(): in the file of the step, else in the only file that has any."""
    files = [path for path, text in sources.texts.items() if ".eval()" in text]
    near = step if step.path in files else SourceLine(files[0], 1) if len(files) == 1 else SourceLine()
    return line_with(sources.texts, near, ".eval()") if near else SourceLine()


def _apart(
    peers: ReplicaGroup,
    modes: dict[int, tuple[int, int, bool]],
    steps: Sequence[int],
    sources: Sources,
    step: SourceLine,
) -> Finding:
    most = max(evaluating for _, evaluating, _ in modes.values())
    odd = tuple(rank for rank, (_, evaluating, _) in modes.items() if evaluating == most)
    rest = tuple(rank for rank in modes if rank not in odd)
    line = _put_into_eval_mode(sources, step)
    are = "layer is" if most == 1 else "layers are"
    return Finding(
        title=f"step {steps[0]}: {named(odd)} {'trains' if len(odd) == 1 else 'train'} in eval mode, and {named(rest)} "
        f"{'does' if len(rest) == 1 else 'do'} not: {most} {are} switched off there",
        ranks=odd,
        confidence=LIKELY,
        place=line or step,
        places=(
            *((Place(line, peers.ranks, "puts a model into eval mode"),) if line else ()),
            *((Place(step, peers.ranks, "the optimizer steps"),) if step else ()),
        ),
        evidence={
            "in_eval_mode": {rank: evaluating for rank, (_, evaluating, _) in modes.items()},
            "in_training_mode": {rank: training for rank, (training, _, _) in modes.items()},
            "steps_compared": len(steps),
            "first_step": steps[0],
        },
        why="dropout, batch normalization and their like do there what they do in an evaluation, and "
        + ("all ranks train the same layers" if peers.by == OBSERVED else f"{named(peers.ranks)} train one model")
        + f"; so it was in {len(steps)} steps that were looked at",
        prescriptions=(Prescription("train-again"),),
    )


def _since(peers: ReplicaGroup, last: ModesSeen, first: int, begins: int, sources: Sources) -> Finding:
    line = _put_into_eval_mode(sources, last.site)
    are = "layer" if last.evaluating == 1 else "layers"
    return Finding(
        title=f"the model trains in eval mode since step {begins}: {last.evaluating} {are} that trained in step {first} "
        "are switched off",
        ranks=peers.ranks,
        confidence=LIKELY,
        severity=WARNING,
        place=line or last.site,
        places=(
            *((Place(line, peers.ranks, "puts a model into eval mode"),) if line else ()),
            *((Place(last.site, peers.ranks, "the optimizer steps"),) if last.site else ()),
        ),
        evidence={"since_step": begins, "layers": last.evaluating},
        why="somebody called eval() on the whole model, and nobody train() since then: dropout is off, and batch normalization "
        "no longer follows the data",
        prescriptions=(Prescription("train-again"),),
        at_ns=last.at_ns,
    )


def _job(modes: dict[int, tuple[int, int, bool]]) -> Recording:
    from distdoctor.testing.gradients import STEP_LINE, trained_job

    job = trained_job(2).initial()
    for rank, log in enumerate(job.logs):
        log.note(ModesSeen(1, 1, 3, 0), site=STEP_LINE)
        log.note(ModesSeen(1, 3, *modes[rank]), site=STEP_LINE)
    for _ in range(6):
        job.step()
    return job.recording()


def sick() -> Recording:
    """Rank 0 evaluates alone, and goes on in eval mode."""
    return _job({0: (0, 3, True), 1: (3, 0, False)})


def healthy() -> Recording:
    """Both freeze one layer in the same step."""
    return _job({0: (2, 1, False), 1: (2, 1, False)})
