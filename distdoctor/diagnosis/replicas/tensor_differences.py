"""Which tensors are not the same bits on all ranks that should agree: of one step, one kind of digest at a time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from distdoctor.diagnosis.rank_groups import variants_of
from distdoctor.diagnosis.replicas.gradients import Gradients, ReplicaGroup
from distdoctor.diagnosis.replicas.rank_gradients import TensorInfo
from distdoctor.recording.trace.layout import DigestFlag

INITIAL, BEFORE, GRADS, PARAMS, STATE = "initial parameters", "parameters before", "gradients", "parameters", "state"
STATE_BEFORE = "state before"
COLUMN = {
    INITIAL: "param",
    BEFORE: "before",
    STATE_BEFORE: "state_before",
    GRADS: "grad",
    PARAMS: "param",
    STATE: "state",
}
_SUM = {INITIAL: "param_sum", BEFORE: "param_sum", GRADS: "grad_sum", PARAMS: "param_sum"}


@dataclass(frozen=True)
class TensorDifference:
    """One tensor that is not the same everywhere. `variants`: ranks with equal bits, the most numerous first."""

    tensor: TensorInfo
    variants: tuple[tuple[int, ...], ...]
    sums: Mapping[int, int]  # of the words, by rank
    norms: Mapping[int, float]
    none_on: tuple[int, ...] = ()  # ranks on which there was no gradient
    started_equal: bool = False  # it is known to have been equal when the step began

    @property
    def name(self) -> str:
        return self.tensor.name

    @property
    def typical(self) -> float:
        """The root mean square of its elements, by the largest norm."""
        return max(self.norms.values(), default=0.0) / math.sqrt(max(1, self.tensor.numel))

    def flipped_bit(self, odd: Iterable[int]) -> int | None:
        """Which bit of a 64-bit word of the odd rank differs, when it is a single one."""
        odd = set(odd)
        usual = [value for rank, value in self.sums.items() if rank not in odd]
        strange = [value for rank, value in self.sums.items() if rank in odd]
        if len(odd) != 1 or not usual or len(strange) != 1:
            return None
        for difference in ((strange[0] - usual[0]) % (1 << 64), (usual[0] - strange[0]) % (1 << 64)):
            if difference and difference & (difference - 1) == 0:
                return difference.bit_length() - 1
        return None


def differences_of(
    gradients: Gradients, peers: ReplicaGroup, what: str, step: int, ranks: Iterable[int]
) -> tuple[list[TensorDifference], int, bool]:
    """The tensors that differ, how many were compared, and whether every rank still has its details."""
    tensors = gradients.agreeing(peers, on_gradients=what == GRADS)
    here = set(ranks)
    sets = [[rank for rank in alike if rank in here] for alike in gradients.alike(peers, COLUMN[what])]
    held = [(*gradients.ranks[alike[0]].held(step, peers.optimizer), len(alike)) for alike in sets if alike]
    differing, compared = _screened(tensors, held, COLUMN[what])
    rows = {rank: gradients.ranks[rank].digests(step, peers.optimizer) for rank in here} if differing else {}
    found = [
        _difference(tensors[name], {rank: own[name] for rank, own in rows.items() if name in own}, what)
        for name in differing
    ]
    return found, compared, all(names for names, *_ in held)


def _screened(
    tensors: Mapping[str, TensorInfo], own: Sequence[tuple[tuple[str, ...], Any, int]], column: str
) -> tuple[list[str], int]:
    """The names of the tensors that are not the same on all who hold them, and how many were compared; a column of ranks at once,
    because there may be ten thousand. `own`: names, rows, and how many ranks have these."""
    at = {name: number for number, name in enumerate(tensors)}
    values, holders = np.zeros((len(own), len(at)), np.uint64), np.zeros((len(own), len(at)), int)
    unreadable = np.zeros(len(at), bool)
    places: dict[tuple[str, ...], tuple[Any, Any]] = {}
    for number, (names, rows, ranks) in enumerate(own):
        if names not in places:
            where = np.array([at.get(name, -1) for name in names], dtype=np.intp)
            places[names] = np.flatnonzero(where >= 0), where[where >= 0]
        mine, where = places[names]
        values[number, where] = rows[column][mine]
        holders[number, where] = ranks
        unreadable[where] |= (rows["flags"][mine] & DigestFlag.UNREADABLE) != 0
    usable = (holders.sum(0) > 1) & ~unreadable
    if column in ("before", "state", "state_before"):  # 0: not digested in this look, or kept on some ranks only (ZeRO)
        usable &= ((values != 0) | (holders == 0)).all(0)
    first = values[holders.argmax(0), np.arange(len(at))] if own else values.sum(0)
    differs = usable & ((values != first) & (holders > 0)).any(0)
    return [name for name, number in at.items() if differs[number]], int(usable.sum())


def _difference(tensor: TensorInfo, held: Mapping[int, Any], what: str) -> TensorDifference:
    values = {rank: int(row[COLUMN[what]]) for rank, row in held.items()}
    norms = {rank: float(row["norm"]) for rank, row in held.items()}
    sums = {rank: int(row[_SUM[what]]) for rank, row in held.items()} if what in _SUM else {}
    none_on = tuple(rank for rank, value in values.items() if not value) if what == GRADS else ()
    befores = {int(row["before"]) for row in held.values()}
    equal_before = len(befores) == 1 and befores != {0}
    return TensorDifference(tensor, variants_of(values), sums, norms, none_on, equal_before)


def joint(differences: Iterable[TensorDifference], ranks: Iterable[int]) -> dict[int, int]:
    """One value for each rank over several tensors."""
    joint = dict.fromkeys(ranks, 0)
    for difference in differences:
        for number, variant in enumerate(difference.variants):
            for rank in variant:
                joint[rank] = hash((joint[rank], number))
    return joint
