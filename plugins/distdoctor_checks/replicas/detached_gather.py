"""
DD217 detached-gather: the loss is computed from features gathered or summed by a collective that autograd does not track.

What it means    dist.all_gather fills plain buffers, so autograd does not know where their contents came from. A contrastive
                 loss over all ranks' features then learns from its own side only, or not at all. dist.all_reduce changes a tensor
                 in place, and its gradient passes straight through: no rank's part gets the gradient of other ranks' losses.
Why it hurts     Part of the gradient is missing, without an error. The loss falls more slowly and ends higher.
How we know      The gathered input requires a gradient, gradients are enabled, and the graph that backward starts from holds
                 the collective's output bits without a gradient. `cut`: the loss has no other path to the features. Where
                 the source detached the features for the gathering and trains on the same ones as well: a note, possible.
                 Of a sum: ranks that average their gradients (by a mean, not a sum) computed something from it afterwards that
                 the loss is made of, and that was kept for backward because the gradient depends on its value: likely. A note
                 where the loss was the same on all of them and depends on what they train through the sum alone.
                 Of an autograd function of the program's own, that gathers over ranks whose gradients are averaged: its backward
                 gives back the rank's own part, and exchanges nothing. Likely; a note where all ranks had the same loss.
                 Of a rank that puts its own features back: the loss is made of a parameter of which each rank has other values
                 (its share of the classes), no wrapper averages it, and the loss is one on all ranks: likely.
What to do       Gather with torch.distributed.nn.functional.all_gather, or put this rank's own features back into the gathered
                 list. Sum with torch.distributed.nn.functional.all_reduce, whose result is a new tensor.
When it is fine  Gathering or summing for a metric, under no_grad or of a detached tensor; a list into which own features are put
                 back, where all ranks compute the loss with the same parameters; targets that are meant to be constants (a
                 stop-gradient, as in BYOL); sums among tensor-parallel ranks; a loss that is multiplied by the number of ranks,
                 or a learning rate that was tuned to the smaller gradient.
Source           torch.distributed.all_gather: "not differentiable"; torch.distributed.nn.functional.all_gather is. torch's
                 warning that c10d::allreduce_ has no autograd kernel.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.facts.replicas import Replicas
from distdoctor.diagnosis.facts.sources import Sources
from distdoctor.diagnosis.finding import CERTAIN, ERROR, LIKELY, NOTE, POSSIBLE, WARNING, Finding, Place, Prescription
from distdoctor.diagnosis.replicas.gradients import WRAPPER, Gradients, ReplicaGroup
from distdoctor.diagnosis.replicas.used_factor import is_close, used_factors
from distdoctor.diagnosis.source.gather_functions import OwnPart, own_part_functions
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import RankTrace, Recording, SourceLine
from distdoctor.recording.trace.events import DETACHED, DetachedGather, GatheredBesideOwn


@check("DD217", "detached-gather", severity=ERROR, stands_alone=True)
def examine(gradients: Gradients, replicas: Replicas | None, sources: Sources) -> Iterator[Finding]:
    yield from _own_parts(gradients, sources)
    yield from _beside_shares(gradients)
    seen: dict[tuple[SourceLine, str, bool, int], list[tuple[int, int, int]]] = defaultdict(list)
    summed: dict[SourceLine, dict[int, DetachedGather]] = defaultdict(dict)
    for rank, own in gradients.ranks.items():
        for one in own.events(DetachedGather):
            if one.ranks:
                summed[one.site].setdefault(rank, one)
            else:
                seen[one.site, one.operation, one.reached, one.nbytes].append((rank, one.step, one.at_ns))
    for by_rank in summed.values():
        mistaken = {rank: one for rank, one in by_rank.items() if _are_averaged(one.ranks, gradients, replicas)}
        if mistaken:
            yield _scaled(mistaken) if _is_one_loss(mistaken) else _summed(mistaken)
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


def _beside_shares(gradients: Gradients) -> Iterator[Finding]:
    """Gatherings with the own part put back, for a loss to which each rank adds by parameters of its own."""
    found: dict[tuple[SourceLine, str, int], dict[int, GatheredBesideOwn]] = defaultdict(dict)
    for rank, own in gradients.ranks.items():
        for event in own.events(GatheredBesideOwn):
            found[event.site, event.name, event.step].setdefault(rank, event)
    told: set[SourceLine] = set()
    for (site, name, step), events in found.items():
        averaged = any(peers.by == WRAPPER and peers.ranks == tuple(sorted(events)) for peers in gradients.peers)
        values, losses = {one.value for one in events.values()}, {one.loss for one in events.values()}
        if site in told or not averaged or len(values) < len(events) or len(losses) > 1 or math.isnan(min(losses)):
            continue
        told.add(site)
        ranks = tuple(sorted(events))
        yield Finding(
            title=f"step {step}: features are gathered without gradients for a loss of which each rank computes a part with "
            f"`{name}` of its own: what the others' parts say of its features is missing",
            ranks=ranks,
            place=site,
            places=(Place(site, ranks, "gathers the features of all ranks"),),
            evidence={"step": step, "parameter": name, "loss": next(iter(losses))},
            why=f"the loss is the same on {named(ranks)}, `{name}` is another one on each of them, and only the rank's own "
            "features have a gradient in what was gathered: of their gradient each rank has what its own part gives",
            prescriptions=(
                Prescription(
                    "gather-with-gradient",
                    change="gather with torch.distributed.nn.functional.all_gather, or a function whose backward sums the "
                    "gradients over the ranks and hands each its own",
                ),
            ),
            severity=WARNING,
            confidence=LIKELY,
            at_ns=min(one.at_ns for one in events.values()),
        )


def _own_parts(gradients: Gradients, sources: Sources) -> Iterator[Finding]:
    """Functions that gather over ranks whose gradients are averaged, and hand on only the own part of the own gradient."""
    for found in own_part_functions(sources.texts) if sources.texts else ():
        for peers in (one for one in gradients.peers if one.by == WRAPPER):
            logs = [gradients.ranks[rank].log for rank in peers.ranks if rank in gradients.ranks]
            if len(logs) == len(peers.ranks) > 1 and all(
                _gathers_over(log, found.gathers, peers.ranks) for log in logs
            ):
                multiplied = (is_close(factor, len(logs)) for _, factor in used_factors(gradients, peers))
                if not any(multiplied) and not _is_multiplied(gradients, peers):
                    yield _own_part(found, gradients, peers)
                    break


def _gathers_over(log: RankTrace, line: SourceLine, ranks: tuple[int, ...]) -> bool:
    """Whether this line gathers over all of these ranks, in most of the steps: an evaluation gathers now and then."""
    calls = log.calls
    names = {log.text(int(group)): int(group) for group in np.unique(calls["group"])}
    over = [names[one.name] for one in log.group_list() if one.name in names and set(ranks) <= set(one.ranks)]
    sites = [int(one) for one in np.unique(calls["site"]) if log.site(int(one)) == line]
    steps = np.unique(calls["step"][np.isin(calls["site"], sites) & np.isin(calls["group"], over)])
    since = int(calls["step"].min()) if len(calls) else 0
    return 2 * len(steps) >= max(1, int(log.steps["step"].max(initial=0)) - since)


def _is_multiplied(gradients: Gradients, peers: ReplicaGroup) -> bool:
    """Whether losses are multiplied by the number of ranks, which makes up for the mean."""
    roots = {update.roots for updates in gradients.updates(peers).values() for update in updates if update.step}
    return any(f"mul {len(peers.ranks)}" in one.split(";") for one in roots)


def _own_part(found: OwnPart, gradients: Gradients, peers: ReplicaGroup) -> Finding:
    updates = gradients.updates(peers)
    losses: dict[int, set[float]] = defaultdict(set)
    for own in updates.values():
        for update in own:
            if update.step:
                losses[update.step].add(update.value("loss"))
    one_loss = bool(losses) and all(len(values) == 1 and not math.isnan(min(values)) for values in losses.values())
    ranks, first = len(peers.ranks), next(iter(updates.values()))[0]
    effect = (
        f"the loss is the same on all of them, and the mean of their parts is {ranks} times too small"
        if one_loss
        else "what the other ranks' losses say of this rank's features is missing"
    )
    return Finding(
        title=f"the backward of {found.name} hands on this rank's own part of the gradient, and sums no other rank's: {effect}",
        ranks=peers.ranks,
        place=found.returns,
        places=(
            Place(found.returns, peers.ranks, "gives back the rank's own part"),
            Place(found.gathers, peers.ranks, "gathers over ranks whose gradients are averaged"),
        ),
        evidence={"function": found.name, "ranks": ranks, "one_loss": one_loss},
        why=f"a feature of rank 0 is in the losses of all {ranks} ranks, so its gradient is the sum over them; "
        f"{peers.by} averages afterwards, which makes up for nothing that was not summed here",
        prescriptions=(
            Prescription(
                "gather-with-gradient",
                change="all_reduce the gradients in backward before the rank's own part is taken (reduce_scatter does both), or "
                "gather with torch.distributed.nn.functional.all_gather",
            ),
        ),
        severity=NOTE if one_loss else WARNING,
        confidence=LIKELY,
        at_ns=first.at_ns,
    )


def _are_averaged(ranks: tuple[int, ...], gradients: Gradients, replicas: Replicas | None) -> bool:
    """Whether these ranks are replicas, whose gradients are not summed: a sum completes what each has of one loss."""
    sets = replicas.sets if replicas is not None else ()
    known = next((one for one in sets if set(ranks) <= set(one.ranks)), None)
    if known is None:
        return False
    peers = [one for one in gradients.peers if set(ranks) <= set(one.ranks)]
    factors = [(factor, len(one.ranks)) for one in peers for _, factor in used_factors(gradients, one)]
    summed = any(is_close(factor, count) for factor, count in factors)
    return not summed and (known.proven or bool(factors))  # by hand it may be either, until a step has shown it


def _summed(by_rank: dict[int, DetachedGather]) -> Finding:
    ranks, one = tuple(sorted(by_rank)), by_rank[min(by_rank)]
    step, count = min(other.step for other in by_rank.values()), len(one.ranks)
    missing = "the gradient of the other ranks' losses"
    return Finding(
        title=f"step {step}: all_reduce summed in place what requires a gradient, and the loss is computed from the sum: "
        f"{missing} is missing",
        ranks=ranks,
        place=one.site,
        places=(Place(one.site, ranks, f"all_reduce of what requires a gradient, {one.nbytes:,} bytes"),),
        evidence={"step": step, "op": one.operation, "bytes": one.nbytes, "missing": missing},
        why=f"autograd does not see all_reduce: on {named(ranks)} the gradient of the sum passes through it unchanged, "
        f"and is then averaged over {count} ranks. Of a loss that is the same on all of them the gradient is {count} times too "
        "small, of others it is wrong",
        prescriptions=(Prescription("reduce-with-gradient"),),
        severity=WARNING,
        confidence=LIKELY,
        at_ns=min(other.at_ns for other in by_rank.values()),
    )


def _is_one_loss(by_rank: dict[int, DetachedGather]) -> bool:
    """Whether all ranks had the very same loss of the sums, and nothing else leads to what they train: then each has its part of
    one gradient, and the parts miss nothing but the sum over them."""
    found = list(by_rank.values())
    members = all(set(one.ranks) <= set(by_rank) for one in found)
    same = len({(one.step, one.loss) for one in found}) == 1 and not math.isnan(found[0].loss)
    return members and same and all(one.only for one in found)


def _scaled(by_rank: dict[int, DetachedGather]) -> Finding:
    ranks, one = tuple(sorted(by_rank)), by_rank[min(by_rank)]
    count = len(one.ranks)
    return Finding(
        title=f"step {one.step}: {named(ranks)} compute one loss from what all_reduce summed, and average their parts of its "
        f"gradient: it is {count} times too small",
        ranks=ranks,
        place=one.site,
        places=(Place(one.site, ranks, f"all_reduce of what requires a gradient, {one.nbytes:,} bytes"),),
        evidence={"step": one.step, "op": one.operation, "bytes": one.nbytes, "loss": one.loss},
        why=f"the loss of step {one.step}, {one.loss:.6g}, is the same on {named(ranks)} and depends on the parameters by the "
        f"sum alone: the gradient over all ranks is the sum of theirs. The mean is {count} times smaller and misses no part. "
        "A learning rate that was tuned like this makes up for it, and optimizers that divide by the size of the gradient "
        "(Adam, LARS) hardly see it",
        prescriptions=(Prescription("reduce-with-gradient"),),
        severity=NOTE,
        confidence=LIKELY,
        at_ns=min(other.at_ns for other in by_rank.values()),
    )


def sick() -> Recording:
    from distdoctor.testing.gradients import trained_job

    job = trained_job(2).initial()
    job.note(DetachedGather("all_gather", reached=False, step=1, nbytes=4096), site="train.py:28 train")
    return job.step().recording()


def healthy() -> Recording:
    from distdoctor.testing.gradients import trained_job

    return trained_job(2).initial().step().step().recording()
