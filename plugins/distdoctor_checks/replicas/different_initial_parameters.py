"""
DD201 different-initial-parameters: the replicas do not start from the same weights.

What it means    Before the first optimizer step, parameters that all replicas share are not bit-identical on every rank.
Why it hurts     Averaged gradients move different models by the same amount. The models never converge to one another, and each
                 rank evaluates and saves a different one.
How we know      Digests of all bits of every parameter, taken when the first step began, before it changed anything. The last
                 seed before the model is built is shown where the source makes it of the rank, a clock or the process. Likely
                 where only some differ and the ranks exchange rows by all_to_all: these may be experts, which each rank owns;
                 and in a script that steps by itself, when it reduces gradients in each backward pass.
What to do       Seed every rank with the same seed before building the model, load the same checkpoint on all ranks, or
                 broadcast the parameters from rank 0. DistributedDataParallel broadcasts by default, unless init_sync=False.
When it is fine  Ranks that hold different shards or stages, and ensembles: only ranks that average their gradients are
                 compared.
Source           DistributedDataParallel, init_sync; Megatron-LM, --check-weight-hash-across-dp-replicas-interval
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.facts.sources import Sources
from distdoctor.diagnosis.finding import CERTAIN, ERROR, LIKELY, Finding, Place, Prescription
from distdoctor.diagnosis.hang.wording import at
from distdoctor.diagnosis.replicas.divergence import ReplicaDivergence, ReplicaDivergences
from distdoctor.diagnosis.replicas.gradients import OBSERVED, Gradients
from distdoctor.diagnosis.replicas.reduced_by_hand import reduction_line
from distdoctor.diagnosis.replicas.stepped_by_hand import PartedByHand
from distdoctor.diagnosis.replicas.tensor_differences import INITIAL
from distdoctor.diagnosis.replicas.wording import evidence, loaded_where, places, sides, tie, which
from distdoctor.diagnosis.source.initial_seeds import InitialSeed, initial_seed
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Recording, SourceLine
from distdoctor.recording.trace.events import WATCHED, Wrapped
from distdoctor.recording.trace.layout import Op

_EXCHANGES = (int(Op.ALL_TO_ALL), int(Op.ALL_TO_ALL_SINGLE))


@check("DD201", "different-initial-parameters", severity=ERROR, family="replicas")
def examine(
    partings: ReplicaDivergences | None, by_hand: PartedByHand | None, sources: Sources, recording: Recording
) -> Iterator[Finding]:
    if by_hand is not None and not by_hand.until:
        yield _stepped_by_hand(by_hand, sources)
    if partings is None:
        return
    for parting in partings.found:
        if parting.what != INITIAL:
            continue
        first = parting.differences[0].name if parting.differences else ""
        experts = _may_be_experts(parting, recording)
        seed = initial_seed(sources.texts, first) if not parting.loaded_on and not experts else None
        update = parting.updates[parting.odd[0]]
        differ = "differs" if len(parting.differences) == 1 else "differ"
        seeded = seed.lines[-1][0] if seed else SourceLine()
        averaged = reduction_line(partings.gradients, parting.peers) if experts else SourceLine()
        loaded = loaded_where(parting, sources.texts)
        sites = (
            averaged,
            *(place.site for place in loaded),
            parting.loaded_at,
            seeded,
            *parting.said_at.values(),
            update.site,
        )
        yield Finding(
            title=f"{which(parting)} {differ} before the first step: {sides(parting)}",
            ranks=parting.odd,
            undecided=parting.is_tie,
            place=next((site for site in sites if site), update.site),
            places=(
                *((Place(averaged, parting.peers.ranks, "averages their gradients"),) if averaged else ()),
                *loaded,
                *_seeded(seed, parting.peers.ranks),
                *places(parting),
            ),
            evidence=evidence(parting),
            why="; ".join(
                part
                for part in (
                    f"{_together(parting)}, but {parting.share} differ before the first step",
                    _of_each_rank(seed),
                    "the ranks exchange rows by all_to_all, and all other parameters are equal: these may be experts of each "
                    "rank's own, and then it is their gradients that must not be averaged"
                    if experts
                    else "",
                    tie(parting),
                )
                if part
            ),
            prescriptions=(
                _own_experts() if experts else _same_load(parting) if parting.loaded_on else _same_seed(seed),
            ),
            confidence=LIKELY if experts and parting.confidence is CERTAIN else parting.confidence,
            at_ns=_since(parting, partings.gradients),
            explains=(parting.key,),
        )


def _stepped_by_hand(parted: PartedByHand, sources: Sources) -> Finding:
    """Replicas of a script without an optimizer of torch."""
    seed = initial_seed(sources.texts, parted.names[0])
    more = f" and {len(parted.names) - 1} more" if len(parted.names) > 1 else ""
    parts = (
        f"gradients are reduced over {named(parted.ranks)} in every backward pass, and in the looks up to pass {parted.last} "
        "no weight that is trained has become the same on all of them",
        _of_each_rank(seed),
    )
    return Finding(
        title=f"{parted.names[0]}{more} {'differ' if more else 'differs'} before the first backward pass and in every later look",
        ranks=parted.odd,
        undecided=parted.is_tie,
        confidence=LIKELY,
        place=seed.lines[-1][0] if seed else parted.reduced,
        places=(*_seeded(seed, parted.ranks), Place(parted.reduced, parted.ranks, "reduces gradients")),
        evidence={"different": list(parted.names[:8]), "last look": parted.last},
        why="; ".join(part for part in parts if part),
        prescriptions=(_same_seed(seed),),
    )


def _may_be_experts(parting: ReplicaDivergence, recording: Recording) -> bool:
    """Whether some parameters alone differ, of ranks that exchange rows as those do of which each owns some of the experts."""
    logs = [recording.ranks[rank].calls["op"] for rank in parting.peers.ranks if rank in recording.ranks]
    exchange = [np.isin(ops, _EXCHANGES).any() for ops in logs]
    return bool(exchange) and all(exchange) and 0 < len(parting.differences) < parting.compared


def _own_experts() -> Prescription:
    return Prescription(
        "same-initial-weights",
        change="leave what each rank owns (experts) out of the averaging over these ranks; make the rest equal: one seed on all "
        "ranks before the model is built, or a broadcast from rank 0",
    )


def _since(parting: ReplicaDivergence, gradients: Gradients) -> int:
    """When they were made replicas: what is found between that and the first step may follow from it."""
    known = (gradients.ranks[rank] for rank in parting.peers.ranks if rank in gradients.ranks)
    return min([parting.at_ns, *(event.at_ns for own in known for event in own.events(Wrapped))])


def _together(parting: ReplicaDivergence) -> str:
    if parting.peers.by == OBSERVED:
        return f"{named(parting.peers.ranks)} have bit-identical gradients in the first steps, so they train one model"
    if parting.peers.by == WATCHED:
        return f"{WATCHED} says that {named(parting.peers.ranks)} hold replicas"
    return f"{parting.peers.by} makes these ranks replicas"


def _seeded(seed: InitialSeed | None, ranks: tuple[int, ...]) -> tuple[Place, ...]:
    made = "only where" if seed and seed.only_where else "made of"
    return tuple(
        Place(line, ranks, f"{made} `{text}`" if number else "the last seed before the model is built")
        for number, (line, text) in enumerate(seed.lines if seed else ())
    )


def _of_each_rank(seed: InitialSeed | None) -> str:
    if seed is None:
        return ""
    site, text = seed.lines[-1]
    how = "given only where" if seed.only_where else "each rank's own:"
    return f"the last seed before the model is built is {how} `{text}` at {at(site)}"


def _same_seed(seed: InitialSeed | None) -> Prescription:
    if seed is None:
        return Prescription("same-initial-weights")
    return Prescription(
        "same-initial-weights",
        change=f"give every rank the same seed at {at(seed.lines[-1][0])}; seed with the rank again after the model is built, if "
        "dropout and augmentation are meant to differ",
        edits=seed.edits,
    )


def _same_load(parting: ReplicaDivergence) -> Prescription:
    return Prescription(
        "same-initial-weights",
        change=f"load the state at {at(parting.loaded_at)} on every rank, or on one rank before the model is wrapped: "
        "DistributedDataParallel broadcasts what rank 0 holds when it is made",
    )


def sick() -> Recording:
    from distdoctor.testing.gradients import trained_job

    return trained_job(3).initial({2: 1}).step(params={2: 1}).recording()


def healthy() -> Recording:
    from distdoctor.testing.gradients import trained_job

    return trained_job(3).initial().step().recording()
