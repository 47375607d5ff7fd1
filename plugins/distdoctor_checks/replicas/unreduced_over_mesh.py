"""
DD221 unreduced-over-mesh: ranks share a layer but never reduce its gradients over their group, or over another group only.

What it means    In a tensor-, sequence- or context-parallel region each rank sees part of the activations. A layer replicated
                 there gets part of its gradient on each rank, and the parts must be summed over that group.
Why it hurts     Each rank steps with its own part: the copies drift slowly and are no longer one layer.
How we know      The ranks keep other parameters equal, step after step. The weights of a normalization layer also started
                 equal, and from the first step on, or from one of the earlier half, their gradients and their bits differ
                 in each, and in the source their size does not come from the number of ranks. Or: layers of any kind
                 started equal on all ranks of a mesh and stay equal over one axis of it only, where the others hold other
                 shards. Or: the ranks compute one loss, bit for bit, in every step, hold different parts of a layer, and
                 another layer of the same module, which started equal, parts in the same way. Or: a weight that several
                 stages of a pipeline hold under one name began with the same bits there, where other weights of one name
                 began apart, and has other gradients and bits on each of them from the first step on.
What to do       Sum the gradients of replicated parameters over the group that shares them (Megatron marks them
                 `sequence_parallel`), or declare them Replicate() on the mesh and let DTensor do it.
When it is fine  Normalization layers that are meant to be rank-local, as one weight for each local head or those of an expert:
                 not told where the source sizes them by the number of ranks, nor where ranks trade rows (all_to_all) and
                 nothing of the module around is shared; else accept it with --ignore DD221.
Source           Megatron-LM, finalize_model_grads; torch.distributed.tensor.parallel.SequenceParallel.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Container, Iterator, Mapping, Sequence

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.facts.sources import Sources
from distdoctor.diagnosis.finding import ERROR, LIKELY, Finding, Place, Prescription
from distdoctor.diagnosis.replicas.gradients import OBSERVED, WRAPPER, Gradients, ReplicaGroup
from distdoctor.diagnosis.replicas.observed import Courses, ParameterCourse, courses, equal_sets
from distdoctor.diagnosis.replicas.own_parts import rows_traded
from distdoctor.diagnosis.replicas.tied_stages import TiedWeight, tied_weights
from distdoctor.diagnosis.replicas.wording import line_with
from distdoctor.diagnosis.source.made_modules import is_sized_by_ranks, module_made
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Recording, SourceLine
from distdoctor.recording.trace.layout import TensorFlag

LOOKS = 3  # with a loss of their own
ENOUGH = 2  # parameters that the same ranks do keep equal


@check("DD221", "unreduced-over-mesh", severity=ERROR, family="replicas", at_most=LIKELY)
def examine(gradients: Gradients, sources: Sources) -> Iterator[Finding]:
    for optimizer in sorted({update.optimizer for update in gradients.every_update()}):
        told = {peers.ranks: peers.by for peers in gradients.peers if peers.optimizer == optimizer}
        holders = tuple(sorted(_holders(gradients, optimizer)))
        yield from (_tied(gradients, optimizer, one, sources) for one in tied_weights(gradients, optimizer, holders))
        wrapped = {ranks for ranks, by in told.items() if by == WRAPPER and ranks != holders}
        if not _may_share_more(gradients, optimizer, wrapped):
            continue
        found = courses(gradients.ranks, optimizer, holders, wrapped)
        sets = equal_sets(found)
        for ranks, names in sets.items():
            if len(names) < ENOUGH or told.get(ranks, OBSERVED) != OBSERVED or _is_in_a_larger_set(sets, ranks):
                continue  # of replicas that a wrapper or calls tell of, DD202 says that they part
            one_loss = _compute_one_loss(gradients, optimizer, ranks)
            apart = [
                name
                for name, by_rank in found.items()
                if name not in names
                and _is_apart(by_rank, ranks)
                and (_is_a_norm(by_rank, ranks) or (one_loss and _is_whole_in_a_split_block(name, found, ranks)))
            ]
            apart = [name for name in apart if not is_sized_by_ranks(sources.texts, name)]
            if all(rows_traded(gradients.ranks[rank]) for rank in ranks):
                apart = [name for name in apart if not _is_of_an_owner(name, names)]
            if apart:
                made = module_made(sources.texts, apart[0])
                peers = ReplicaGroup(ranks, optimizer, OBSERVED, (), names)
                first = _first_apart([found[apart[0]][rank] for rank in ranks])
                yield _finding(gradients, peers, apart, made, _equal_on(found[apart[0]], ranks), first)
        yield from _over_another_axis(gradients, optimizer, found, sets)


def _is_of_an_owner(name: str, shared: Collection[str]) -> bool:
    """Whether nothing of the module around a layer is shared: what begins as ones and zeros is equal on all who own such a
    module. A block with sharded layers has such a norm, too, but no rows are traded for it."""
    around = name.rpartition(".")[0].rpartition(".")[0]
    return bool(around) and not any(one.startswith(f"{around}.") for one in shared)


def _may_share_more(gradients: Gradients, optimizer: int, wrapped: Container[tuple[int, ...]]) -> bool:
    """Whether of any parameter it is not known, or only of some of its holders, who should agree on it."""
    every = (one for one in gradients.tensors_of(gradients.ranks) if one.optimizer == optimizer)
    return any(not one.agree or one.agree in wrapped for one in every if not one.flags & TensorFlag.BUFFER)


def _over_another_axis(
    gradients: Gradients, optimizer: int, found: Courses, sets: Mapping[tuple[int, ...], frozenset[str]]
) -> Iterator[Finding]:
    """Of a mesh whose one axis replicates the shards that the other splits: whole parameters that are kept equal over the axis
    that splits, and not over the one that replicates."""
    for replicating, shards in sets.items():
        for splitting, names in sets.items():
            if not _cross(replicating, splitting) or not _are_split(found, shards, splitting):
                continue
            apart = sorted(name for name in names if _is_apart(found[name], replicating))
            if len(apart) == len(names):
                yield _wrong_axis(gradients, optimizer, replicating, splitting, apart)
                return


def _cross(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    return len(set(one) & set(other)) == 1


def _are_split(found: Courses, shards: frozenset[str], ranks: tuple[int, ...]) -> bool:
    """Whether these ranks hold different parts of each, from the beginning."""
    held = [[found[name][rank].start for rank in ranks if rank in found[name]] for name in shards]
    return len(shards) >= ENOUGH and all(len({*starts}) == len(ranks) for starts in held)


def _wrong_axis(
    gradients: Gradients, optimizer: int, replicating: tuple[int, ...], splitting: tuple[int, ...], apart: list[str]
) -> Finding:
    update = next(u for u in gradients.ranks[replicating[0]].updates if u.optimizer == optimizer and u.step)
    more = f" and {len(apart) - 1} more" if len(apart) > 1 else ""
    ranks = tuple(sorted(gradients.ranks))
    return Finding(
        title=f"step 1: the gradients of {apart[0]}{more} are reduced over {named(splitting)}, and not over {named(replicating)}",
        ranks=ranks,
        confidence=LIKELY,
        place=update.site,
        places=(Place(update.site, ranks, "the optimizer steps"),),
        evidence={"parameters": apart[:8], "equal_over": list(splitting), "apart_over": list(replicating)},
        why=f"{named(splitting)} hold different shards of other parameters, which {named(replicating)} keep equal: these "
        f"train on different data. {apart[0]}{more} started equal on all of them but differs between {named(replicating)} from "
        "step 1 on",
        prescriptions=(Prescription("reduce-over-the-group"),),
        at_ns=update.at_ns,
    )


def _tied(gradients: Gradients, optimizer: int, tied: TiedWeight, sources: Sources) -> Finding:
    update = next(u for u in gradients.ranks[tied.ranks[0]].updates if u.optimizer == optimizer and u.step)
    made = module_made(sources.texts, tied.name) or line_with(
        sources.texts, update.site, f"self.{tied.name.rpartition('.')[2]} ="
    )
    return Finding(
        title=f"step 1: the gradients of {tied.name} are not added up over {named(tied.ranks)}, stages that share it",
        ranks=tied.ranks,
        confidence=LIKELY,
        place=made or update.site,
        places=(
            *((Place(made, tied.ranks, f"makes {tied.name}"),) if made else ()),
            Place(update.site, tied.ranks, "the optimizer steps"),
        ),
        evidence={"parameters": [tied.name], "others_begun_apart": tied.begun_apart},
        why=f"{tied.name} began with the same bits on {named(tied.ranks)}, where {tied.begun_apart} other weights of one name "
        "and shape began apart; it has another gradient, and other bits, on each of them from step 1 on",
        prescriptions=(
            Prescription(
                "reduce-over-the-group",
                change=f"before each step: dist.all_reduce({tied.name}.grad, group=...) over {named(tied.ranks)}; their sum is "
                "the gradient of the one weight",
            ),
        ),
        at_ns=update.at_ns,
    )


def _holders(gradients: Gradients, optimizer: int) -> list[int]:
    return [r for r, own in gradients.ranks.items() if any(u.optimizer == optimizer for u in own.updates)]


def _is_a_norm(by_rank: Mapping[int, ParameterCourse], ranks: tuple[int, ...]) -> bool:
    return all(by_rank[rank].owner.endswith("Norm") for rank in ranks)


def _compute_one_loss(gradients: Gradients, optimizer: int, ranks: tuple[int, ...]) -> bool:
    """Whether the loss of every step that was looked at is the same on these ranks, and another one from step to step: together
    they compute one model on one batch."""
    losses: dict[int, set[float]] = defaultdict(set)
    for rank in ranks:
        for update in gradients.ranks[rank].updates:
            if update.optimizer == optimizer and update.step and update.digested:
                losses[update.step].add(update.loss)
    different = {loss for one in losses.values() for loss in one}
    return len(different) >= LOOKS and all(len(one) == 1 and math.isfinite(*one) for one in losses.values())


def _is_whole_in_a_split_block(name: str, found: Courses, ranks: tuple[int, ...]) -> bool:
    """Whether of another layer in the module around this one the ranks hold different parts."""
    around = name.rpartition(".")[0].rpartition(".")[0]
    beside = (by_rank for one, by_rank in found.items() if around and one.startswith(f"{around}."))
    return any(
        all(rank in by_rank for rank in ranks) and len({by_rank[rank].start for rank in ranks}) == len(ranks)
        for by_rank in beside
    )


def _is_apart(by_rank: Mapping[int, ParameterCourse], ranks: tuple[int, ...]) -> bool:
    """Whether it started equal on these ranks and parts for good: from some step on, which is no later than half of those on
    record, it has other gradients and other bits in each of them."""
    mine = [by_rank[rank] for rank in ranks if rank in by_rank]
    if len(mine) < len(ranks) or len({(c.shape, c.start) for c in mine}) > 1:
        return False
    steps, first = len(mine[0].params), _first_apart(mine)
    return (
        2 * first < steps
        and all(all(course.grads) for course in mine)
        and all(len({course.grads[step] for course in mine}) > 1 for step in range(first, steps))
        and all(len({course.params[step] for course in mine}) > 1 for step in range(first, steps))
    )


def _first_apart(courses: Sequence[ParameterCourse]) -> int:
    """How many steps these stay equal."""
    steps = len(courses[0].params)
    return next((step for step in range(steps) if len({course.params[step] for course in courses}) > 1), steps)


def _is_in_a_larger_set(sets: Mapping[tuple[int, ...], frozenset[str]], ranks: tuple[int, ...]) -> bool:
    return any(set(more) > set(ranks) and len(names) >= ENOUGH for more, names in sets.items())


def _equal_on(by_rank: Mapping[int, ParameterCourse], ranks: tuple[int, ...]) -> list[list[int]]:
    """Who of these ranks stays equal with whom in one parameter; [] where each is alone."""
    alike: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for rank in ranks:
        alike[by_rank[rank].params].append(rank)
    return [some for some in alike.values() if len(some) > 1]


def _finding(
    gradients: Gradients, peers: ReplicaGroup, apart: list[str], made: SourceLine, equal_on: list[list[int]], first: int
) -> Finding:
    """`first`: how many steps they stayed equal."""
    own = [u for u in gradients.ranks[peers.ranks[0]].updates if u.optimizer == peers.optimizer and u.step]
    update = own[min(first, len(own) - 1)]
    more = f" and {len(apart) - 1} more" if len(apart) > 1 else ""
    owner = gradients.ranks[peers.ranks[0]].info(apart[0], peers.optimizer)
    kind = owner.owner if owner is not None else ""
    parts = " and ".join(named(some) for some in equal_on[:4])
    how = (
        f"stays so on {parts} only"
        if equal_on
        else f"has a different gradient on each of them from step {first + 1} on"
    )
    unreduced = f"the gradients of {apart[0]}{more} are not reduced over {named(peers.ranks)}"
    return Finding(
        title=f"step {first + 1}: {unreduced}, which share the layer",
        ranks=peers.ranks,
        confidence=LIKELY,
        place=made or update.site,
        places=(
            *((Place(made, peers.ranks, f"makes {apart[0].rpartition('.')[0]}"),) if made else ()),
            Place(update.site, peers.ranks, "the optimizer steps"),
        ),
        evidence={
            "parameters": apart[:8],
            "kept_equal": sorted(peers.names)[:8],
            "equal_over": equal_on,
            "recognised_by": f"the class {kind}",
        },
        why=f"{named(peers.ranks)} keep {len(peers.names)} parameters equal in each step; {apart[0]}{more} (of a {kind}) started "
        f"equal but {how}",
        prescriptions=(Prescription("reduce-over-the-group"),),
        at_ns=update.at_ns,
    )


def _job(**apart: object) -> Recording:
    from distdoctor.testing.gradients import trained_job

    parameters = {"norm.weight": "[64]", "body.weight": "[64, 20]", "head.weight": "[10, 64]"}
    job = trained_job(2, agree=(), parameters=parameters, owners={"norm.weight": "LayerNorm"}).initial()
    for _ in range(3):
        job.collective("all_reduce", [64, 20]).step(names=["norm.weight"], **apart)  # type: ignore[arg-type]
    return job.recording()


def sick() -> Recording:
    return _job(grads={1: 1}, params={1: 1})


def healthy() -> Recording:
    return _job()
