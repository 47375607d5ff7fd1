"""What lies between the gradients that ranks compute and those that the optimizer uses, as one factor; and whose losses they are.

A mean over the ranks is 1, a sum the number of ranks; what the script divides by hand shows as well.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator

from distdoctor.diagnosis.replicas.gradients import Gradients, ReplicaGroup
from distdoctor.diagnosis.replicas.rank_gradients import RankGradients, Update, same_ranks
from distdoctor.recording.trace.events import BackwardRng
from distdoctor.recording.trace.layout import SPOTS, UpdateFlag

TOLERANCE = 0.01  # reductions in 16 bits lose that much
VISIBLE = 1e-3  # a mean that is smaller than this share of its terms is mostly rounding
LOSSES = 2  # steps in which losses are compared, at least
NEARLY = 0.8  # of all steps: some losses are alike by chance
APART = 1e-4  # relative: ranks with other numbers of threads round differently


def is_close(value: float, known: float) -> bool:
    return math.isclose(value, known, rel_tol=TOLERANCE)


def used_factors(gradients: Gradients, peers: ReplicaGroup) -> Iterator[tuple[int, float]]:
    """(step, what was used divided by the mean of what the ranks computed), where all elements agree on it."""
    spots: dict[int, dict[str, dict[int, tuple[list[float], list[float]]]]] = defaultdict(lambda: defaultdict(dict))
    for rank in peers.ranks:
        own = gradients.ranks.get(rank)
        for row in own.log.rows("spots") if own is not None else ():
            tensor = own.tensors.get(int(row["tensor"])) if own is not None and row["step"] <= own.until else None
            if tensor is None or (peers.names and tensor.name not in peers.names):
                continue
            if tensor.optimizer == peers.optimizer and same_ranks(tensor.grad_agree, peers.lane):
                values = [[float(row[f"{kind}_{i}"]) for i in range(SPOTS)] for kind in ("own", "used")]
                spots[int(row["step"])][tensor.name][rank] = (values[0], values[1])
    for step, tensors in sorted(spots.items()):
        if any(_is_changed(update) for updates in gradients.updates(peers, step).values() for update in updates):
            continue
        found = [factor for ranks in tensors.values() if len(ranks) == len(peers.ranks) for factor in _ratios(ranks)]
        if _is_one_factor(found):
            yield step, sum(found) / len(found)


def own_factors(own: RankGradients, optimizer: int) -> Iterator[tuple[int, float]]:
    """(step, what a rank used divided by what it had computed), where all elements agree on it: what it divides by hand, with
    or without a sum over ranks that compute the same."""
    ratios: dict[int, list[float]] = defaultdict(list)
    for row in own.log.rows("spots"):
        tensor = own.tensors.get(int(row["tensor"]))
        if tensor is not None and tensor.optimizer == optimizer and row["step"] <= own.until:
            values = ((float(row[f"own_{spot}"]), float(row[f"used_{spot}"])) for spot in range(SPOTS))
            ratios[int(row["step"])] += [used / computed for computed, used in values if computed]
    changed = {update.step for update in own.updates if _is_changed(update)}
    for step, found in sorted(ratios.items()):
        if step not in changed and _is_one_factor(found):
            yield step, sum(found) / len(found)


def _is_one_factor(found: list[float]) -> bool:
    return len(found) >= 2 and max(found) - min(found) <= TOLERANCE * abs(max(found))


def _is_changed(update: Update) -> bool:
    """Clipping and scaling change gradients by factors of their own."""
    return bool(update.flags & UpdateFlag.CLIPPED) or update.value("scale") != 0


def _ratios(ranks: dict[int, tuple[list[float], list[float]]]) -> Iterator[float]:
    for spot in range(SPOTS):
        own = [values[0][spot] for values in ranks.values()]
        used = {values[1][spot] for values in ranks.values()}
        mean, size = sum(own) / len(own), sum(map(abs, own)) / len(own)
        if len(used) == 1 and size and abs(mean) > VISIBLE * size and math.isfinite(mean):
            yield used.pop() / mean


def losses_differ(gradients: Gradients, ranks: Iterable[int]) -> bool | None:
    """Whether replicas computed other losses in nearly every step that was looked at on all of them, or the same ones in all;
    None where that is not known, where it changes, or where a dropout was active, which draws differently on the same inputs."""
    ranks = tuple(ranks)
    if has_dropout(gradients, ranks):
        return None
    by_step = _losses(gradients, ranks)
    apart = sum(max(losses) - min(losses) > APART * max(map(abs, losses)) for losses in by_step)
    if len(by_step) < LOSSES or 0 < apart < NEARLY * len(by_step):
        return None
    return apart > 0


def has_dropout(gradients: Gradients, ranks: Iterable[int]) -> bool:
    """Whether a dropout was active in a backward pass of some of these ranks."""
    known = (gradients.ranks[rank] for rank in ranks if rank in gradients.ranks)
    return any(begun.dropout for own in known for begun in own.events(BackwardRng))


def own_elements(gradients: Gradients, ranks: Iterable[int]) -> dict[tuple[int, int, str], list[tuple[float, ...]]]:
    """(optimizer, step, parameter) -> what each of these ranks had computed by itself, of the elements that were kept."""
    own: dict[tuple[int, int, str], list[tuple[float, ...]]] = defaultdict(list)
    for rank in ranks:
        one = gradients.ranks.get(rank)
        for row in one.log.rows("spots") if one is not None else ():
            tensor = one.tensors.get(int(row["tensor"])) if one is not None else None
            if tensor is not None:
                key = tensor.optimizer, int(row["step"]), tensor.name
                own[key].append(tuple(float(row[f"own_{i}"]) for i in range(SPOTS)))
    return own


def computes_one_loss(gradients: Gradients, peers: ReplicaGroup) -> bool:
    """Whether all ranks have the same loss in each step, but gradients of their own: parts of one that a sum completes."""
    by_step = _losses(gradients, peers.ranks)
    same = len(by_step) >= LOSSES and all(len(set(losses)) == 1 for losses in by_step)
    every = own_elements(gradients, peers.ranks) if same else {}
    own = [set(values) for (optimizer, *_), values in every.items() if optimizer == peers.optimizer]
    return bool(own) and all(len(values) > 1 for values in own)


def _losses(gradients: Gradients, ranks: tuple[int, ...]) -> list[list[float]]:
    """Those of all ranks, for each step in which they are known of every one."""
    by_step: dict[int, dict[int, float]] = defaultdict(dict)
    for rank in ranks:
        for update in gradients.ranks[rank].updates if rank in gradients.ranks else ():
            if update.step and update.digested and math.isfinite(update.value("loss")):
                by_step[update.step][rank] = update.value("loss")
    return [list(values.values()) for values in by_step.values() if len(values) == len(ranks)]
