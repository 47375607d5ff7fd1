"""
DD802 diverged-scaler: GradScaler skipped a step on some ranks only, or scales differ between replicas.

What it means    One rank saw an overflow and the others did not: gradients were checked before they were averaged, or they are
                 never averaged. That rank skipped its step and halved its scale; the others stepped.
Why it hurts     The replicas are different models from that step on, and gradients with different scales are averaged.
How we know      Each rank records the number of steps that its scaler skipped, and the scale after update(). Likely where the
                 ranks hold no replicas but pieces of one model, and the source reduces the gradients of all in each step.
What to do       Average first, then unscale: DistributedDataParallel does so by default. By hand, reduce gradients before
                 scaler.unscale_(), or reduce the scaler's found_inf over the ranks.
When it is fine  All ranks skip together: that is the scaler's purpose.
Source           torch.amp.GradScaler.unscale_, "working with multiple GPUs"; torch.distributed.fsdp.sharded_grad_scaler.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.facts.sources import Sources
from distdoctor.diagnosis.finding import ERROR, LIKELY, Finding, Place, Prescription
from distdoctor.diagnosis.replicas.divergence import ReplicaDivergences, scalers_differ
from distdoctor.diagnosis.replicas.gradients import BY_HAND, Gradients, ReplicaGroup
from distdoctor.diagnosis.replicas.rank_gradients import Update
from distdoctor.diagnosis.replicas.reduced_by_hand import reduced_in_each_turn
from distdoctor.diagnosis.replicas.tensor_differences import INITIAL
from distdoctor.diagnosis.replicas.wording import by_rank
from distdoctor.diagnosis.source.call_edits import method_around
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Recording, SourceLine

FEWEST = 4  # steps
LEAST_BYTES = 256  # reduced in a step: more than a norm, a loss or a flag


@check("DD802", "diverged-scaler", severity=ERROR, family="replicas", specificity=80)
def examine(gradients: Gradients, partings: ReplicaDivergences | None, sources: Sources) -> Iterator[Finding]:
    known, locally = (partings.found, partings.by_design) if partings is not None else ((), ())
    for peers in gradients.peers:
        apart = _first_apart(gradients.updates(peers)) if peers not in locally else None
        if apart is not None:
            apart_there = (p.key for p in known if p.peers == peers and p.what != INITIAL and scalers_differ(p))
            yield replace(_finding(peers, *apart, sources.texts), explains=tuple(apart_there))
    if not gradients.peers:
        yield from _of_pieces(gradients)


def _of_pieces(gradients: Gradients) -> Iterator[Finding]:
    """Each rank steps a piece of the model that is its own, by a scaler of its own, and all reduce their gradients together."""
    updates = {rank: [one for one in own.updates if one.optimizer == 1] for rank, own in gradients.ranks.items()}
    apart = _first_apart(updates)
    if apart is None or any(not update.value("scale") for update in apart[1].values()):
        return
    turns = max(FEWEST, min(map(len, updates.values())) // 2)
    lines = [reduced_in_each_turn(gradients.recording, rank, turns, LEAST_BYTES) for rank in updates]
    if not all(lines):
        return
    step, there = apart
    found = _finding(ReplicaGroup(tuple(sorted(updates)), 1, BY_HAND, ()), step, there, gradients.recording.sources)
    reduces = Place(lines[0], tuple(sorted(updates)), "reduces the gradients of all ranks together")
    why = "each rank steps its piece of what all reduce together, so all must decide together whether a step overflows, but each "
    why += "decided by its own piece; from then on gradients of two scales are added up"
    cure = Prescription(
        "average-before-unscale",
        change="between scaler.unscale_() and scaler.step() let the ranks agree on found_inf by all_reduce(MAX), as "
        "torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler does",
    )
    yield replace(found, confidence=LIKELY, places=(*found.places, reduces), why=why, prescriptions=(cure,))


def _first_apart(updates: Mapping[int, Sequence[Update]]) -> tuple[int, dict[int, Update]] | None:
    """The first step at which the counts of skipped steps, or the scales, differ."""
    rows: dict[int, dict[int, Update]] = {}
    for rank, own in updates.items():
        for update in own:
            if update.step:
                rows.setdefault(update.step, {})[rank] = update
    for step, there in sorted(rows.items()):
        both = [(update.number("skipped"), update.value("scale")) for update in there.values()]
        if len(there) > 1 and len(set(both)) > 1:
            return step, there
    return None


def _finding(peers: ReplicaGroup, step: int, updates: dict[int, Update], sources: Mapping[str, str]) -> Finding:
    skipped = {rank: update.number("skipped") for rank, update in updates.items()}
    scales: dict[int, Any] = {rank: f"{update.value('scale'):g}" for rank, update in updates.items()}
    differ = skipped if len(set(skipped.values())) > 1 else scales
    ranks = _odd(differ, overflowed=differ is skipped)
    site = next((update.site for update in updates.values() if update.site), updates[ranks[0]].site)
    looks = method_around(sources, site, "unscale_") if peers.by == BY_HAND else SourceLine()
    what = "GradScaler has skipped" if differ is skipped else "GradScaler's scale is"
    unit = " steps" if differ is skipped else ""
    return Finding(
        title=f"step {step}: {what} {by_rank(differ, unit)}",
        ranks=ranks,
        place=looks or site,
        places=(
            *((Place(looks, peers.ranks, "looks for gradients that overflow"),) if looks else ()),
            *(
                Place(
                    updates[rank].site,
                    (rank,),
                    f"{skipped[rank]} {'step' if skipped[rank] == 1 else 'steps'} skipped, scale {scales[rank]}",
                )
                for rank in list(updates)[:6]
            ),
        ),
        evidence={"step": step, "skipped": skipped, "scale": scales, "replicas": list(peers.ranks)},
        why=f"{named(peers.ranks)} must decide together whether a step overflows, but each rank decided by its own gradients",
        prescriptions=(Prescription("average-before-unscale"),),
        at_ns=min(update.at_ns for update in updates.values()),
    )


def _odd(differ: Mapping[int, Any], *, overflowed: bool) -> tuple[int, ...]:
    """The ranks that are not as most are. Without a majority those that skipped, which they only do of gradients that overflow;
    all ranks where nothing but the scales tells them apart."""
    counts = list(differ.values())
    usual = max(set(counts), key=counts.count)
    if counts.count(usual) * 2 <= len(counts):
        usual = min(counts) if overflowed else None
    return tuple(rank for rank, value in differ.items() if value != usual)


def sick() -> Recording:
    from distdoctor.testing.gradients import trained_job

    job = trained_job(3).initial().step(scale=1024.0)
    return job.step(scale={0: 1024.0, 1: 512.0, 2: 1024.0}, skipped={0: 0, 1: 1, 2: 0}).recording()


def healthy() -> Recording:
    from distdoctor.testing.gradients import trained_job

    return trained_job(3).initial().step(scale=1024.0).step(scale=512.0, skipped=1).recording()
