"""Replicas that part by design and meet again: local SGD, periodic averaging, gossip, models that are sent round.

Weights that became different by themselves never become equal again by themselves. So where they do, the program has brought
them together; and where its own collectives carry weights between steps again and again, at once or in parts that take turns,
it is at it. A state that differs while the parameters stay the same is one that no rank uses: each keeps its own part of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from distdoctor.diagnosis.facts.replicas import in_buckets
from distdoctor.diagnosis.replicas.gradients import Gradients, ReplicaGroup
from distdoctor.diagnosis.replicas.rank_gradients import RankGradients, TensorInfo, Update, same_ranks
from distdoctor.diagnosis.source.reduced_gradients import reduces_gradients
from distdoctor.recording.trace.layout import POINT_TO_POINT, SPOTS, CallFlag, Op, TensorFlag

PATIENCE = 4  # times the longest time apart so far: a last window that nobody has closed yet
EXCHANGES = 2  # steps after which weights were exchanged; once may be the end of something
_ENOUGH = 0.9  # of the weights' shapes have to be found among those of the collectives
_PADDED = 1.05  # of all elements, where buckets are filled up to round numbers
_ITEM_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
_COLLECTIVE = (
    Op.ALL_REDUCE,
    Op.ALL_REDUCE_COALESCED,
    Op.BROADCAST,
    Op.ALL_GATHER,
    Op.ALL_GATHER_INTO_TENSOR,
    Op.REDUCE,
)
_CARRYING = [int(op) for op in (*POINT_TO_POINT, *_COLLECTIVE)]

Looks = Mapping[int, Mapping[int, Update]]  # step -> rank -> what was seen
Variants = Sequence[tuple[int, ...]]  # the ranks that held the same, of each version


def next_meeting(gradients: Gradients, peers: ReplicaGroup, looks: Looks, step: int, variants: Variants) -> int | None:
    """The first step from `step` on after which the parameters of ranks that differed in `step` are the same, though they moved;
    or before which they are. None: never."""
    for later in sorted(number for number in looks if number >= step):
        updates = looks[later]
        if not _is_across(updates, variants):
            continue
        if later > step and _equal(gradients, peers, later, tuple(updates), "before"):
            return later
        moved = all(update.value("lr") != 0 for update in updates.values())
        if moved and _equal_after(gradients, peers, later, updates):
            return later
    return None


def _is_across(updates: Mapping[int, Update], variants: Variants) -> bool:
    """Whether a look was taken by ranks of several versions: not every rank has the time for every look."""
    return sum(any(rank in updates for rank in variant) for variant in variants) > 1


def _equal_after(gradients: Gradients, peers: ReplicaGroup, step: int, updates: Mapping[int, Update]) -> bool:
    if peers.names:
        return _equal(gradients, peers, step, tuple(updates), "param")
    return len({update.number("params") for update in updates.values()}) == 1


def _equal(gradients: Gradients, peers: ReplicaGroup, step: int, ranks: tuple[int, ...], column: str) -> bool:
    """Whether every parameter was the same when that step began, or ended; False where that was not looked at."""
    rows = [gradients.ranks[rank].digests(step, peers.optimizer) for rank in ranks]
    if not all(rows):
        return False
    names = set.intersection(*(set(found) for found in rows))
    values = [[int(found[name][column]) for name in sorted(names) if _mine(gradients, peers, name)] for found in rows]
    return bool(values[0]) and all(values[0]) and all(one == values[0] for one in values)


def _mine(gradients: Gradients, peers: ReplicaGroup, name: str) -> bool:
    info = gradients.ranks[peers.ranks[0]].info(name, peers.optimizer) if peers.ranks[0] in gradients.ranks else None
    return info is not None and same_ranks(info.agree, peers.lane) and (not peers.names or name in peers.names)


def is_felt(gradients: Gradients, peers: ReplicaGroup, looks: Looks, since: int, variants: Variants) -> bool | None:
    """Whether a state that differed before step `since` has made the parameters different; None where no such step was seen.

    Optimizers that update a share of the parameters on each rank and send the results use the state of the owner alone.
    """
    later = [
        (number, looks[number]) for number in sorted(looks) if number >= since and _is_across(looks[number], variants)
    ]
    moved = [(number, updates) for number, updates in later if all(one.value("lr") != 0 for one in updates.values())]
    if not moved:
        return None
    return not any(_equal_after(gradients, peers, number, updates) for number, updates in moved)


def weights_are_exchanged(gradients: Gradients, peers: ReplicaGroup, since: int) -> bool:
    """Whether each rank's own collectives with the others carry its weights between steps, more than once after step `since`."""
    known = [gradients.ranks[rank] for rank in peers.ranks if rank in gradients.ranks]
    sources = gradients.recording.sources
    return len(known) > 1 and all(_times_exchanged(own, peers, since, sources) >= EXCHANGES for own in known)


def _times_exchanged(own: RankGradients, peers: ReplicaGroup, since: int, sources: Mapping[str, str]) -> int:
    """How often the weights were sent between steps, before the next gradients were computed: all of them at once, or part by
    part in the course of several steps, as streaming DiLoCo does."""
    held = {
        t.name: t
        for t in own.tensors.values()
        if t.optimizer == peers.optimizer and same_ranks(t.agree, peers.lane) and not t.flags & TensorFlag.BUFFER
    }
    wanted = Counter(t.shape for t in held.values())
    if not wanted:
        return 0
    calls = own.log.calls
    calls = calls[(calls["step"] >= max(1, since)) & np.isin(calls["op"], _CARRYING)]
    calls = calls[calls["flags"] & CallFlag.NATIVE == 0]
    gradient_lines = [site for site in np.unique(calls["site"]) if reduces_gradients(sources, own.log.site(int(site)))]
    calls = calls[~np.isin(calls["site"], gradient_lines)]
    at_once, in_parts = 0, Counter[str]()
    for between in _between_steps(own, calls):
        sent = [call for call in between if _concerns(own, call, peers)]
        at_once += _are_all(own, sent, list(held.values()))
        in_parts.update(Counter(own.log.text(int(call["shape"])) for call in sent) & wanted)
    in_turns = sum((Counter({shape: count // EXCHANGES for shape, count in in_parts.items()}) & wanted).values())
    return max(at_once, EXCHANGES if in_turns >= _ENOUGH * sum(wanted.values()) else 0)


def _between_steps(own: RankGradients, calls: Any) -> Iterator[list[Any]]:
    """Of each step, the calls that were made before its gradients were computed, as far as these can be no gradients themselves.

    A pass whose step was left out reduces its gradients too, before the backward of the next one: where there were several
    passes, what a line sends behind the last of them it has sent behind the others as well.
    """
    rows = own.log.rows("times")
    times = {int(row["step"]) - 1: (int(row["forward_ended_ns"]), int(row["backwards"])) for row in rows}
    of_gradients: set[int] = set()  # lines, in any step so far
    for step in np.unique(calls["step"]):
        mine, (backward, passes) = calls[calls["step"] == step], times.get(int(step), (None, 0))
        behind = {int(call["site"]) for call in mine if not _is_before(call, backward)}
        of_gradients |= behind
        reducing = behind if passes > 1 else set()
        if not backward:  # no step has followed the last passes
            reducing = of_gradients
        yield [call for call in mine if _is_before(call, backward) and int(call["site"]) not in reducing]


def _are_all(own: RankGradients, calls: Sequence[Any], held: Sequence[TensorInfo]) -> bool:
    """Whether these calls carry as much as all these weights: one by one, flat, in buckets, or as objects."""
    plain = [call for call in calls if not int(call["flags"]) & CallFlag.OBJECT]
    objects = [int(call["nbytes"]) for call in calls if int(call["flags"]) & CallFlag.OBJECT]
    shapes, wanted = Counter(own.log.text(int(call["shape"])) for call in plain), Counter(t.shape for t in held)
    total, least = sum(t.numel for t in held), min(_ITEM_BYTES.get(t.dtype, 4) for t in held)
    return (
        total <= in_buckets(shapes) <= _PADDED * total
        or sum((shapes & wanted).values()) >= _ENOUGH * sum(wanted.values())
        or max(objects, default=0) >= total * least
    )


def weights_are_mixed(gradients: Gradients, peers: ReplicaGroup, looks: Looks) -> bool:
    """Whether every rank changes its weights besides the optimizer's steps, again and again, while its gradients stay as it
    computed them: then its collectives carry weights, though they come between backward and step (elastic averaging)."""
    known = [gradients.ranks[rank] for rank in peers.ranks if rank in gradients.ranks]
    if not all(_keeps_its_gradients(own) for own in known):
        return False
    mixed = [
        later
        for earlier, later in pairwise(sorted(looks))
        if later == earlier + 1 and all(_has_changed(own, peers, earlier, later) for own in known)
    ]
    return len(mixed) >= EXCHANGES


def _keeps_its_gradients(own: RankGradients) -> bool:
    """Whether no gradient of which elements were taken was changed between backward and step."""
    rows = own.log.rows("spots")
    same = [all(row[f"own_{i}"] == row[f"used_{i}"] for i in range(SPOTS)) for row in rows]
    return bool(same) and all(same)


def _has_changed(own: RankGradients, peers: ReplicaGroup, earlier: int, later: int) -> bool:
    """Whether most of the parameters were not what the step before had left when this one began."""
    then, now = own.digests(earlier, peers.optimizer), own.digests(later, peers.optimizer)
    known = [name for name in now if name in then and int(now[name]["before"])]
    changed = [name for name in known if int(now[name]["before"]) != int(then[name]["param"])]
    return bool(known) and 2 * len(changed) > len(known)


def _is_before(call: Any, backward_began: int | None) -> bool:
    """Whether it was made before the backward of its step: what comes after that may be the gradients' reduction."""
    return not backward_began or int(call["entered_ns"]) < backward_began


def _concerns(own: RankGradients, call: Any, peers: ReplicaGroup) -> bool:
    if int(call["op"]) in [int(op) for op in POINT_TO_POINT]:
        return int(call["root"]) in peers.ranks
    members = next((g.ranks for g in own.log.group_list() if g.name == own.log.text(int(call["group"]))), ())
    return len(set(members) & set(peers.ranks)) > 1
