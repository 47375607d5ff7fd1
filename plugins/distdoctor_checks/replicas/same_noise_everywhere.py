"""
DD216 same-noise-everywhere: dropout draws the same masks on every replica, or different masks where they must be the same.

What it means    Replicas whose generators were seeded alike drop the same units in each step; often they draw differently until
                 a resume gives all of them the state that rank 0 has saved. Ranks that split the layers of one model (tensor
                 parallel) and draw differently outside the split layers compute with different activations. A checkpointed
                 function that does not restore the RNG state recomputes a different forward than the one it differentiates.
Why it hurts     The first costs only some regularization. The other two give wrong gradients without an error.
How we know      Digests of the generators' states at the start of backward, on ranks with active dropout: the same, or not, in
                 several passes. Without dropout: in four of the first six passes the generator has advanced since the previous
                 one (noise, time steps, mixing ratios), identically on every replica (possible). Generators of the program's
                 own are known by what they give: in at least four of the first steps one tensor that a wrapped model was given
                 is the same on all replicas, another one in each step, and what else they were given differs (possible). The
                 states are looked at again after torch.set_rng_state or a new seed: different on every replica before, the same
                 since (a warning: the program means them to differ). Split layers: the same states and losses, and what the
                 operation before the dropout kept differs (likely, on the CPU). For checkpoints: the function drew while
                 preserve_rng_state was off.
What to do       Replicas: torch.manual_seed(seed + rank) after building the model. Tensor parallel: the same seed within the
                 group outside split layers. Checkpoints: leave preserve_rng_state on.
When it is fine  Identical masks on replicas do little harm, so that is a note. Different masks within split layers are correct,
                 and nothing is reported as long as the gradients of shared parameters agree.
Source           Megatron-LM, tensor_parallel/random.py; torch.utils.checkpoint, preserve_rng_state.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.facts.replicas import Replicas, ReplicaSet
from distdoctor.diagnosis.finding import CERTAIN, ERROR, LIKELY, NOTE, POSSIBLE, WARNING, Finding, Place, Prescription
from distdoctor.diagnosis.replicas.divergence import ReplicaDivergence, ReplicaDivergences, noise_differs, noise_of
from distdoctor.diagnosis.replicas.gradients import Gradients
from distdoctor.diagnosis.replicas.tensor_differences import GRADS
from distdoctor.diagnosis.replicas.wording import evidence, places, sides, which
from distdoctor.diagnosis.source.given_values import called_from
from distdoctor.diagnosis.source.own_batches import shared_seeds
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Recording, SourceLine
from distdoctor.recording.trace.events import Averaging, BackwardRng, GivenParts, UnkeptRng

LOSS_DIGITS = 5
SEEN = 2  # backward passes with a state of their own
# Of torch's default generator, not `own.manual_seed(`.
_OF_TORCH = re.compile(r"(?:torch\.(?:random\.)?)?manual_seed\(|(?:\w+\.)*(?:seed_everything|set_seed)\(")
DRAWN = 4  # where no dropout is there: a new pass over a loader draws a seed as well


@check("DD216", "same-noise-everywhere", severity=NOTE, specificity=45, family="streams")
def examine(gradients: Gradients, partings: ReplicaDivergences | None, replicas: Replicas | None) -> Iterator[Finding]:
    for parting in partings.found if partings is not None else ():
        if parting.what == GRADS and noise_differs(parting, gradients):
            yield _unequal(parting, gradients)
    yield from _recomputed(gradients)
    for one in replicas.sets if replicas is not None else ():
        if not set(one.ranks) <= gradients.ranks.keys():
            continue  # of some of them nothing was seen
        shared = _shared_states(gradients, one.ranks)
        enough = SEEN if _dropout(gradients, one.ranks[0]) else DRAWN
        if len(shared) >= enough:
            yield _equal(one, shared, gradients)
        else:
            yield from _given_alike(one, gradients)
        same = _equal_since(gradients, one.ranks)
        if len({begun.digest for begun in same}) >= enough:
            yield _made_equal(one, same, gradients)
    ranks = _split(gradients, replicas)
    if len(ranks) > 1 and _dropout(gradients, ranks[0]) and _given_differs(gradients, ranks):
        shared = _shared_states(gradients, ranks)
        if len(shared) >= SEEN:
            yield _equal_parts(ranks, shared, gradients)


def _split(gradients: Gradients, replicas: Replicas | None) -> tuple[int, ...]:
    """All ranks, where they compute one loss in parts: none is a replica of another, and the loss is the same everywhere."""
    if any(len(one.ranks) > 1 for one in (replicas.sets if replicas is not None else ())):
        return ()
    losses: dict[int, set[float]] = defaultdict(set)
    for update in gradients.every_update():
        if update.step and update.digested and math.isfinite(update.value("loss")):
            losses[update.step].add(round(update.value("loss"), LOSS_DIGITS))
    same = len(losses) >= SEEN and all(len(values) == 1 for values in losses.values())
    return tuple(sorted(gradients.ranks)) if same else ()


def _given_differs(gradients: Gradients, ranks: tuple[int, ...]) -> bool:
    """Whether what went into the dropout differed between all ranks, in every pass in which it is known."""
    by_pass: dict[int, list[str]] = defaultdict(list)
    for rank in ranks:
        for begun in gradients.ranks[rank].events(BackwardRng):
            if begun.given:
                by_pass[begun.backward].append(begun.given)
    whole = [values for values in by_pass.values() if len(values) == len(ranks)]
    return len(whole) >= SEEN and all(len(set(values)) == len(ranks) for values in whole)


def _equal_since(gradients: Gradients, ranks: tuple[int, ...]) -> list[BackwardRng]:
    """The first rank's passes since which all ranks had the same state, where each had one of its own before."""
    if len(ranks) < 2:
        return []
    by_rank = [noise_of(gradients, rank, dropout_only=False) for rank in ranks]
    common = set.intersection(*(set(noise) for noise in by_rank))
    states = {number: {noise[number] for noise in by_rank} for number in common}
    apart = max((number for number, found in states.items() if len(found) == len(ranks)), default=None)
    after = {number: found for number, found in states.items() if apart is not None and number > apart}
    if any(len(found) > 1 for found in after.values()):
        return []
    return [begun for begun in gradients.ranks[ranks[0]].events(BackwardRng) if begun.backward in after]


def _shared_states(gradients: Gradients, ranks: tuple[int, ...]) -> set[str]:
    """The random states that all ranks had in the same backward pass, when they never had different ones."""
    if len(ranks) < 2:
        return set()
    by_rank = [noise_of(gradients, rank, dropout_only=False) for rank in ranks]
    passes = set.intersection(*(set(noise) for noise in by_rank))
    states = [{noise[number] for noise in by_rank} for number in sorted(passes)]
    return set.union(*states) if states and all(len(one) == 1 for one in states) else set()


def _given_state(gradients: Gradients, ranks: tuple[int, ...]) -> SourceLine:
    """The line that last gave the generator of each rank a state, or a seed, where it is one line of the user's on all."""
    lines = {next((begun.site for begun in gradients.ranks[rank].events(BackwardRng)), SourceLine()) for rank in ranks}
    return lines.pop() if len(lines) == 1 else SourceLine()


def _dropout(gradients: Gradients, rank: int) -> str:
    return next((begun.module for begun in gradients.ranks[rank].events(BackwardRng)), "")


def _equal(one: ReplicaSet, states: set[str], gradients: Gradients) -> Finding:
    dropout = _dropout(gradients, one.ranks[0])
    site = next((u.loss_site for u in gradients.every_update() if u.rank == one.ranks[0] and u.loss_site), SourceLine())
    given = _given_state(gradients, one.ranks)
    caller = called_from(gradients.recording.sources, given)
    what = f"dropout draws the same masks on all of {named(one.ranks)}: {dropout}"
    return Finding(
        title=what if dropout else f"the loop's random draws are the same on all of {named(one.ranks)}, pass for pass",
        ranks=one.ranks,
        place=given or site,
        places=(
            *((Place(given, one.ranks, "the generators are given one state here"),) if given else ()),
            *((Place(caller, one.ranks, "calls the function that gives it"),) if given and caller else ()),
            *(_seeded_at(one, gradients.recording.sources) if not given else ()),
            Place(site, one.ranks, "backward begins in the same RNG state"),
        ),
        evidence={"generator": "default", "dropout": dropout, "passes": len(states)},
        why=f"{one.words}, and their generators were in the same state in each of {len(states)} backward passes",
        prescriptions=(Prescription("seed-by-rank"),),
        confidence=CERTAIN if dropout else POSSIBLE,
    )


def _seeded_at(one: ReplicaSet, sources: Mapping[str, str]) -> Iterator[Place]:
    """Where the source gives torch's default generator one seed on all ranks, and what calls the function in which it does."""
    for line, text in shared_seeds(sources):
        if _OF_TORCH.match(text):
            yield Place(line, one.ranks, f"seeds every rank alike: `{text}`")
            caller = called_from(sources, line)
            if caller:
                yield Place(caller, one.ranks, "calls the function that seeds")


def _given_alike(one: ReplicaSet, gradients: Gradients) -> Iterator[Finding]:
    """A tensor that all replicas are given alike in each step, while the rest of what they are given differs."""
    by_rank = {
        rank: {(event.step, event.place): event for event in gradients.ranks[rank].events(GivenParts)}
        for rank in one.ranks
    }
    common = set.intersection(*(set(events) for events in by_rank.values())) if len(by_rank) > 1 else set()
    # By forward and tensor: what the ranks were given, step by step.
    found: dict[tuple[int, int], list[set[str]]] = defaultdict(list)
    for step, place in sorted(common):
        parts = [by_rank[rank][step, place] for rank in one.ranks]
        for number in range(min(len(part.digests) for part in parts)):
            found[place, number].append({part.digests[number] for part in parts})
    seen = {where: given for where, given in found.items() if len(given) >= DRAWN}
    alike = [where for where, given in seen.items() if _is_drawn_alike(given)]
    if not alike or not any(all(len(values) > 1 for values in given) for given in seen.values()):
        return
    place, number = alike[0]
    first = next(event for (_, where), event in sorted(by_rank[one.ranks[0]].items()) if where == place)
    shape, steps = first.shapes[number], len(seen[place, number])
    yield Finding(
        title=f"a tensor {shape} that the model is given is the same on all of {named(one.ranks)} in each step, though their "
        "data differ",
        ranks=one.ranks,
        place=first.site,
        places=(Place(first.site, one.ranks, f"is given tensor {number + 1}, {shape}"),),
        evidence={"generator": "own", "shape": shape, "steps": steps},
        why=f"it was another one in each of {steps} steps, and equal on all of them: where noise, time steps or latents are "
        "drawn from generators with one seed, all ranks learn from the same draws",
        prescriptions=(Prescription("seed-by-rank", change="seed the generator that draws it with seed + rank"),),
        confidence=POSSIBLE,
        at_ns=first.at_ns,
    )


def _is_drawn_alike(given: list[set[str]]) -> bool:
    """Whether the ranks were given one thing in each step, and never the same one again."""
    return all(len(values) == 1 for values in given) and len(set.union(*given)) == len(given)


def _made_equal(one: ReplicaSet, same: list[BackwardRng], gradients: Gradients) -> Finding:
    """Ranks with random numbers of their own were all given the state of one of them, or one seed."""
    first, dropout = same[0], _dropout(gradients, one.ranks[0])
    loss = next((u.loss_site for u in gradients.every_update() if u.rank == one.ranks[0] and u.loss_site), SourceLine())
    what = f"dropout draws the same masks ({dropout})" if dropout else "the loop's random draws are the same"
    how = "the generators are given one state here" if first.site else "backward begins in the same RNG state"
    return Finding(
        title=f"since backward pass {first.backward}, {what} on all of {named(one.ranks)}, which drew different ones before",
        ranks=one.ranks,
        place=first.site or loss,
        places=(Place(first.site or loss, one.ranks, how),),
        evidence={"generator": "default", "dropout": dropout, "passes": len(same), "since_backward": first.backward},
        why=f"{one.words}; their generators were in different states in the earlier backward passes, and in the same state in "
        f"each of {len(same)} from pass {first.backward} on",
        prescriptions=(
            Prescription(
                "seed-by-rank",
                change="restore the state of each rank: save one per rank (all_gather_object) and load states[rank]; "
                "or seed again with seed + rank",
            ),
        ),
        severity=WARNING,
        confidence=LIKELY if dropout else POSSIBLE,
        at_ns=first.at_ns,
    )


def _equal_parts(ranks: tuple[int, ...], states: set[str], gradients: Gradients) -> Finding:
    dropout = _dropout(gradients, ranks[0])
    site = next((u.loss_site for u in gradients.every_update() if u.rank == ranks[0] and u.loss_site), SourceLine())
    return Finding(
        title=f"dropout draws the same masks on all of {named(ranks)}, each of which holds a part of the layer: {dropout}",
        ranks=ranks,
        place=site,
        places=(Place(site, ranks, "backward begins in the same RNG state"),),
        evidence={"generator": "default", "dropout": dropout, "passes": len(states)},
        why=f"{named(ranks)} have the same losses and drop different activations by the same masks, in each of {len(states)} "
        "backward passes: units of different parts are dropped together",
        prescriptions=(
            Prescription(
                "seed-by-rank", change="torch.manual_seed(seed + rank)  # for the dropout of split layers alone"
            ),
        ),
        confidence=LIKELY,
    )


def _unequal(parting: ReplicaDivergence, gradients: Gradients) -> Finding:
    dropout = _dropout(gradients, parting.peers.ranks[0])
    site = next((u.loss_site for u in parting.updates.values() if u.loss_site), parting.site)
    return Finding(
        title=f"{parting.when}: ranks that share {which(parting)} draw dropout from different RNG states ({dropout})",
        ranks=parting.odd,
        place=site,
        places=(Place(site, parting.peers.ranks, "backward begins in different RNG states"), *places(parting)[:2]),
        evidence=evidence(parting, generator="default", dropout=dropout),
        why=f"{parting.share} that every rank holds whole have different gradients, {sides(parting)}; the layers are split over "
        "these ranks, so the parts that are not split must be computed identically",
        prescriptions=(Prescription("seed-by-rank"),),
        severity=ERROR,
        confidence=LIKELY,
        at_ns=parting.at_ns,
        explains=(parting.key,),
    )


def _recomputed(gradients: Gradients) -> Iterator[Finding]:
    seen: dict[tuple[SourceLine, str], list[int]] = {}
    at_ns = 0
    for rank, own in gradients.ranks.items():
        for unkept in own.events(UnkeptRng):
            at_ns = at_ns or unkept.at_ns
            seen.setdefault((unkept.site, unkept.function), []).append(rank)
    for (site, name), ranks in seen.items():
        yield Finding(
            title=f"checkpointed {name} draws random numbers and is recomputed with different ones: preserve_rng_state is off",
            ranks=tuple(sorted(set(ranks))),
            place=site,
            places=(Place(site, tuple(sorted(set(ranks))), "checkpoint(..., preserve_rng_state=False)"),),
            evidence={"generator": "default", "function": name},
            why="the RNG state changed while the function ran; backward reruns it from another state, so the gradients belong "
            "to a different dropout mask than the loss",
            prescriptions=(Prescription("seed-by-rank", change="remove preserve_rng_state=False from the call"),),
            severity=WARNING,
            confidence=CERTAIN,
            at_ns=at_ns,
        )


def _job(*windows: tuple[str, str]) -> Recording:
    """`windows`: which states the two ranks had in three passes each; after the first a state was set."""
    from distdoctor.testing.gradients import trained_job

    job, number = trained_job(2), 0
    job.note(Averaging((0, 1), "DistributedDataParallel")).initial()
    for window in windows:
        for _ in range(3):
            number += 1
            for rank, state in enumerate(window):
                begun = BackwardRng(f"{state}{number}", "drop (Dropout 0.1)", number)
                job.note(begun, site="train.py:12 load" if number > 3 else "", only=[rank])
            job.step()
    return job.recording()


def sick() -> Recording:
    return _job(("a", "a"))


def sick_since_a_resume() -> Recording:
    """Rank 1 has been given the state of rank 0."""
    return _job(("a", "b"), ("a", "a"))


def healthy() -> Recording:
    return _job(("a", "b"), ("c", "d"))
