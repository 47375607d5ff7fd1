"""
DD220 norm-over-wrong-ranks: ranks scale the same gradients by different factors, as clipping by a rank-local norm does.

What it means    Several ranks share some parameters, and each holds others alone (shards, experts). A norm over everything that
                 a rank holds differs on every rank, so clipping by it scales the shared gradients differently.
Why it hurts     The shared parameters take a different step on each rank, so the replicas drift from the first clipped step on.
                 Where each rank holds a shard of every parameter, its norm is that of its shard: the step changes direction.
How we know      Before the step these parameters are bit-identical; at the optimizer step their gradients differ by one factor
                 that is the same for most of them and different on each rank. Of shards (DTensors): a few elements of the
                 reduced gradient and of the one that the optimizer uses differ by one factor on each rank, and by another one
                 on another rank, in two steps or more. Or DistributedDataParallel makes all gradients equal, or placements
                 keep each shard on several ranks (HSDP), and in three steps or more a function sums over these ranks what it
                 has made of their squares, and scales gradients: each is counted several times. Or a schedule of torch's
                 pipelining runs the backward passes, or those of a stage begin with a gradient that another rank sent it, and
                 stages clip at one line by norms that differ and are above their one limit in three steps.
What to do       Sum the squares of sharded gradients over the group that shards them, count replicated ones once, take the
                 root, and clip by that norm on every rank. With DTensor parameters, clip_grad_norm_ does this.
When it is fine  Never for parameters that ranks share, or of which they hold shards: the factor must be the same on all of them.
Source           torch.nn.utils.get_total_norm; Megatron-LM, optimizer/clip_grads.py.
"""

from __future__ import annotations

import ast
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.facts.sources import Sources
from distdoctor.diagnosis.finding import ERROR, LIKELY, WARNING, Finding, Place, Prescription
from distdoctor.diagnosis.replicas.gradients import PLACEMENT, WRAPPER, Gradients, ReplicaGroup
from distdoctor.diagnosis.replicas.observed import Courses, ParameterCourse, courses
from distdoctor.diagnosis.replicas.rank_gradients import RankGradients
from distdoctor.diagnosis.replicas.stage_norms import StageNorms, stage_norms
from distdoctor.diagnosis.replicas.wording import event_site, line_with
from distdoctor.diagnosis.source.given_values import called_from
from distdoctor.diagnosis.source.gradient_norms import clips_by_summed_squares
from distdoctor.diagnosis.source.source_file import source_file
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import RankTrace, Recording, SourceLine
from distdoctor.recording.trace.events import ClipNorm
from distdoctor.recording.trace.layout import SPOTS, CallFlag, Op, ReduceOp, TensorFlag, UpdateFlag

ALIKE = 2e-5  # relative: norms are kept in 32 bits
APART = 1e-4
FAR = 1e-3  # factors of two ranks, whose elements were rounded
_SQUARES = ("square", ".pow(2", "** 2", "norm(")
_HOLDS_FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_SCALES, _NORMS = (".mul_(", ".div_(", "_foreach_mul_("), ("norm", "sqrt", "** 0.5")
LARGEST_NUMBER = 8  # bytes of one number
MOST_CALLS = 4096  # of one rank that are looked at, the latest
ENOUGH = 3  # parameters, elements or steps, with the same factor; that does not happen by itself


@dataclass(frozen=True)
class ScaledGradients:
    """The same gradients, times a factor of each rank's own (1 on the first rank)."""

    step: int
    names: tuple[str, ...]
    factors: Mapping[int, float]


@check("DD220", "norm-over-wrong-ranks", severity=ERROR, family="replicas", at_most=LIKELY)
def examine(gradients: Gradients, sources: Sources) -> Iterator[Finding]:
    optimizers = {t.optimizer for own in gradients.ranks.values() for t in own.tensors.values() if not t.agree}
    for optimizer in sorted(optimizers):
        holders = [r for r, own in gradients.ranks.items() if any(u.optimizer == optimizer for u in own.updates)]
        scaled = _first_scaled(courses(gradients.ranks, optimizer, holders))
        if scaled is not None:
            yield _finding(scaled, optimizer, gradients, sources)
    known = (one for one in gradients.peers if one.by in (WRAPPER, PLACEMENT) and one.ranks[0] in gradients.ranks)
    for peers in {
        (one.optimizer, len(one.ranks)): one for one in known
    }.values():  # what one of many sums, the others sum
        first = gradients.ranks[peers.ranks[0]]
        for site, summed in _summed_norms(first.log, gradients, peers, sources):
            yield _summed_finding(peers, site, summed, first, sources)
    shards = _first_scaled_shards(gradients)
    if shards is not None:
        yield _shards_finding(shards, gradients, sources)
    stages = stage_norms(gradients)
    if stages is not None:
        yield _stages_finding(stages)


def _first_scaled(found: Courses) -> ScaledGradients | None:
    steps = max((len(course.params) for by_rank in found.values() for course in by_rank.values()), default=0)
    for step in range(steps):
        by_factors: dict[tuple[tuple[int, float], ...], list[str]] = {}
        for name, by_rank in found.items():
            factors = _factors(by_rank, step)
            if factors is not None:
                known = next((one for one in by_factors if _alike(one, factors)), factors)
                by_factors.setdefault(known, []).append(name)
        every = sum(map(len, by_factors.values()))
        for (
            factors,
            names,
        ) in by_factors.items():  # where most differ by other factors, more than a norm has parted them
            if len(names) >= ENOUGH and 2 * len(names) > every:
                return ScaledGradients(step + 1, tuple(names), dict(factors))
    return None


def _factors(by_rank: Mapping[int, ParameterCourse], step: int) -> tuple[tuple[int, float], ...] | None:
    """Each rank's norm against the first rank's, where they held the same bits when the step began and gradients differ."""
    first = by_rank[min(by_rank)]
    before = {(c.shape, c.params[step - 1] if step else c.start) for c in by_rank.values()}
    if (
        len(by_rank) < 2
        or len(before) > 1
        or len({c.grads[step] for c in by_rank.values()}) == 1
        or not first.norms[step]
    ):
        return None
    factors = tuple((rank, course.norms[step] / first.norms[step]) for rank, course in sorted(by_rank.items()))
    return factors if any(abs(factor - 1) > APART for _, factor in factors) else None


def _alike(one: tuple[tuple[int, float], ...], other: tuple[tuple[int, float], ...]) -> bool:
    return [rank for rank, _ in one] == [rank for rank, _ in other] and all(
        abs(mine - theirs) <= ALIKE * max(abs(mine), abs(theirs))
        for (_, mine), (_, theirs) in zip(one, other, strict=True)
    )


def _finding(scaled: ScaledGradients, optimizer: int, gradients: Gradients, sources: Sources) -> Finding:
    ranks = tuple(scaled.factors)
    update = next(u for u in gradients.ranks[ranks[0]].updates if u.optimizer == optimizer and u.step == scaled.step)
    clipped = event_site(gradients, ClipNorm, ranks)
    line = clipped or _clipping_line(sources, update.site) or update.site
    factors = ", ".join(f"{factor:.4g} on rank {rank}" for rank, factor in list(scaled.factors.items())[:4])
    places = _places(line, update.site, ranks, SourceLine() if clipped else _norm_line(sources, line))
    first, more = scaled.names[0], len(scaled.names) - 1
    return Finding(
        title=f"step {scaled.step}: {named(ranks)} scale the gradients of {first} and {more} more, which they share, by "
        "different factors",
        ranks=ranks,
        confidence=LIKELY,
        place=places[0].site,
        places=places,
        evidence={"step": scaled.step, "factors": dict(scaled.factors), "parameters": list(scaled.names[:8]),
                  "recognised_by": "clip_grad_norm_" if clipped else "the factors"},
        why=f"these {more + 1} parameters were bit-identical on {named(ranks)} before the step; relative to the first rank their "
        f"gradients are all scaled by {factors}, as after clipping by a norm that includes rank-local parameters",
        prescriptions=(Prescription("norm-over-every-shard"),),
        at_ns=update.at_ns,
    )  # fmt: skip


@dataclass(frozen=True)
class Summed:
    """Sums of one number over ranks, some of which hold the same gradients."""

    ranks: tuple[int, ...]
    steps: int


def _summed_norms(
    log: RankTrace, gradients: Gradients, peers: ReplicaGroup, sources: Sources
) -> Iterator[tuple[SourceLine, Summed]]:
    """Sums of one number over all holders of the same gradients, in functions that clip by what squared gradients add up to."""
    groups = {group.name: tuple(sorted(group.ranks)) for group in log.group_list()}
    calls = log.calls
    sums = (calls["op"] == Op.ALL_REDUCE) & (calls["reduce_op"] == ReduceOp.SUM) & (calls["nbytes"] <= LARGEST_NUMBER)
    steps: dict[tuple[SourceLine, tuple[int, ...]], set[int]] = defaultdict(set)
    for row in calls[sums & ((calls["flags"] & CallFlag.NATIVE) == 0)][-MOST_CALLS:]:
        call = log.call(row)
        steps[call.site, groups.get(call.group, ())].add(call.step)
    for (site, ranks), of in steps.items():
        clips = len(of) >= ENOUGH and clips_by_summed_squares(sources.texts, site)
        if clips and _count_each_alike(gradients, peers, ranks):
            yield site, Summed(ranks, len(of))


def _count_each_alike(gradients: Gradients, peers: ReplicaGroup, ranks: tuple[int, ...]) -> bool:
    """Whether everything that the optimizer trains on these ranks lies on as many of them as the peers are, and nowhere else."""
    every = (one for one in gradients.tensors_of(ranks) if one.optimizer == peers.optimizer)
    held = {one.grad_agree for one in every if not one.flags & TensorFlag.BUFFER}
    whole = bool(held) and all(rank in gradients.ranks for rank in ranks)
    return whole and all(len(one) == len(peers.ranks) and {*one} <= {*ranks} for one in held)


def _summed_finding(
    peers: ReplicaGroup, site: SourceLine, summed: Summed, seen: RankGradients, sources: Sources
) -> Finding:
    update = next((u for u in seen.updates if u.optimizer == peers.optimizer and u.step), None)
    asked, count = called_from(sources.texts, site), len(peers.ranks)
    held = (
        f"after DistributedDataParallel has averaged, each of {named(peers.ranks)} holds each gradient whole"
        if peers.by == WRAPPER
        else f"each shard of the gradients lies on {count} ranks (one of them on {named(peers.ranks)})"
    )
    return Finding(
        title=f"the gradients' norm adds up what {named(peers.ranks)} all hold: it is {math.sqrt(count):.3g} times too large",
        ranks=summed.ranks,
        severity=WARNING,
        confidence=LIKELY,
        place=asked or site,
        places=(
            *((Place(asked, summed.ranks, "takes the norm over these ranks"),) if asked else ()),
            Place(site, summed.ranks, f"sums the squares over {len(summed.ranks)} ranks"),
            *((Place(update.site, summed.ranks, "the optimizer steps"),) if update is not None else ()),
        ),
        evidence={"steps": summed.steps, "ranks_that_hold_each_gradient": count},
        why=f"{held}, and in {summed.steps} steps the sum of their squares was summed over {named(summed.ranks)}, by which the "
        "function scales gradients",
        prescriptions=(
            Prescription(
                "norm-over-every-shard",
                change="take the norm of what a rank holds, as torch.nn.utils.clip_grad_norm_ does: nothing is missing on it"
                if count == len(summed.ranks)
                else "sum the squares over the ranks that hold different shards, and not over their copies",
            ),
        ),
        at_ns=update.at_ns if update is not None else 0,
    )


def _first_scaled_shards(gradients: Gradients) -> ScaledGradients | None:
    """The first of at least two steps in which each rank multiplies the shards that it holds by a factor of its own."""
    by_step: dict[int, dict[int, float]] = defaultdict(dict)
    names: set[str] = set()
    for rank, own in gradients.ranks.items():
        for step, factor, name in _shard_factors(own):
            by_step[step][rank] = factor
            names.add(name)
    ranks = set.union(set(), *by_step.values())
    apart = [
        step
        for step, factors in sorted(by_step.items())
        if len(ranks) > 1 and factors.keys() == ranks and max(factors.values()) - min(factors.values()) > FAR
    ]
    return (
        ScaledGradients(apart[0], tuple(sorted(names)), dict(sorted(by_step[apart[0]].items())))
        if len(apart) > 1
        else None
    )


def _shard_factors(own: RankGradients) -> Iterator[tuple[int, float, str]]:
    """(step, factor, a parameter) where all elements on record of a rank's shards changed by one factor after the reduction."""
    clipped = {u.step for u in own.updates if u.flags & UpdateFlag.CLIPPED or u.value("scale")}
    found: dict[int, list[tuple[float, str]]] = defaultdict(list)
    for row in own.log.rows("spots"):
        tensor, step = own.tensors.get(int(row["tensor"])), int(row["step"])
        if tensor is None or not tensor.flags & TensorFlag.SHARDED or step > own.until or step in clipped:
            continue
        for spot in range(SPOTS):
            computed, used = float(row[f"own_{spot}"]), float(row[f"used_{spot}"])
            if computed and math.isfinite(computed) and math.isfinite(used):
                found[step].append((used / computed, tensor.name))
    for step, factors in found.items():
        values = [factor for factor, _ in factors]
        if len(values) >= ENOUGH and min(values) > 0 and max(values) - min(values) <= APART * max(values):
            yield step, values[0], factors[0][1]


def _shards_finding(scaled: ScaledGradients, gradients: Gradients, sources: Sources) -> Finding:
    ranks = tuple(scaled.factors)
    update = next(u for u in gradients.ranks[ranks[0]].updates if u.step == scaled.step)
    line = _clipping_line(sources, update.site) or update.site
    factors = ", ".join(f"{factor:.4g} on rank {rank}" for rank, factor in list(scaled.factors.items())[:4])
    places = _places(line, update.site, ranks, _norm_line(sources, line))
    return Finding(
        title=f"step {scaled.step}: {named(ranks)} scale their shards of the gradients by different factors",
        ranks=ranks,
        confidence=LIKELY,
        place=places[0].site,
        places=places,
        evidence={"step": scaled.step, "factors": dict(scaled.factors), "parameters": list(scaled.names[:8]),
                  "recognised_by": "elements of the shards"},
        why=f"between the reduction and the optimizer step the elements of the gradients are multiplied by {factors}, as after "
        "clipping by the norm of each rank's own shards",
        prescriptions=(Prescription("norm-over-every-shard"),),
        at_ns=update.at_ns,
    )  # fmt: skip


def _stages_finding(stages: StageNorms) -> Finding:
    norms = ", ".join(f"{norm:.4g} on rank {rank}" for rank, norm in list(stages.norms.items())[:4])
    return Finding(
        title=f"step {stages.step}: the stages of the pipeline clip each by the norm of its own parameters",
        ranks=tuple(stages.norms),
        confidence=LIKELY,
        severity=WARNING,
        place=stages.site,
        places=(Place(stages.site, tuple(stages.norms), "clips by the norm of what this stage holds"),),
        evidence={"step": stages.step, "norms": dict(stages.norms), "steps": stages.steps},
        why=f"the norm is {norms}, and they differ in each of {stages.steps} steps in which one is above the limit: each stage "
        "scales its part of the gradient by another factor, and nothing limits the norm of the whole model",
        prescriptions=(
            Prescription(
                "norm-over-every-shard",
                change="all_reduce the square of each stage's get_total_norm, and give the root to clip_grads_with_norm_ on all",
            ),
        ),
        at_ns=stages.at_ns,
    )


def _places(line: SourceLine, step: SourceLine, ranks: tuple[int, ...], norm: SourceLine) -> tuple[Place, ...]:
    """Where the norm comes from, where the gradients are scaled by it, as far as that is known, and the optimizer step."""
    steps = Place(step, ranks, "the optimizer steps")
    if line == step:
        return (steps,)
    taken = (Place(norm, ranks, "takes the norm of what each rank holds"),) if norm else ()
    return *taken, Place(line, ranks, "scales by a rank-local norm"), steps


def _norm_line(sources: Sources, scaling: SourceLine) -> SourceLine:
    """The first line above the scaling, in the same function, that squares or takes a norm."""
    file = source_file(sources.texts, scaling.path)
    function = file.function_at(scaling.line) if file is not None else None
    if not isinstance(function, ast.FunctionDef):
        return SourceLine()
    lines = _own_lines(sources.texts[scaling.path], function)
    above = range(function.body[0].lineno, scaling.line)  # not its own name
    found = [number for number in above if any(word in lines[number] for word in _SQUARES)]
    return SourceLine(scaling.path, found[0], scaling.function) if found else SourceLine()


def _clipping_line(sources: Sources, step: SourceLine) -> SourceLine:
    """Where gradients are multiplied, in a function that also computes a norm; the file of the optimizer step comes first."""
    for path in sorted(sources.texts, key=lambda path: path != step.path):
        file = source_file(sources.texts, path)
        for function in file.nodes(ast.FunctionDef, ast.Module) if file is not None else ():
            lines = _own_lines(sources.texts[path], function)
            scaling = next((number for number, text in lines.items() if any(word in text for word in _SCALES)), 0)
            body = "\n".join(lines.values())
            if scaling and ".grad" in body and any(word in body for word in _NORMS):
                return SourceLine(path, scaling, getattr(function, "name", "<module>"))
    return line_with(sources.texts, step, "norm", within=True)


def _own_lines(source: str, function: ast.FunctionDef | ast.Module) -> dict[int, str]:
    """number -> text of the lines of a function; of a module those outside of its functions."""
    lines = dict(enumerate(source.splitlines(), 1))
    if isinstance(function, ast.FunctionDef):
        return {n: text for n, text in lines.items() if function.lineno <= n <= (function.end_lineno or n)}
    inside = [(one.lineno, one.end_lineno or one.lineno) for one in function.body if isinstance(one, _HOLDS_FUNCTIONS)]
    return {n: text for n, text in lines.items() if not any(first <= n <= last for first, last in inside)}


def _job(norms: Mapping[int, float]) -> Recording:
    from distdoctor.testing.gradients import trained_job

    job = trained_job(2, agree=()).initial()
    for _ in range(3):
        job.collective("all_reduce", [64, 64]).step(
            grads={1: 1} if norms else {}, params={1: 1} if norms else {}, norms=norms
        )
    return job.recording()


def sick() -> Recording:
    return _job({1: 0.31})


def healthy() -> Recording:
    return _job({})
