"""The verdict on replicas, layer by layer: which gradients, parameters and optimizer states are the same bits on all ranks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from distdoctor.diagnosis.check import NotSeen
from distdoctor.diagnosis.derived import derived
from distdoctor.diagnosis.rank_groups import variants_of
from distdoctor.diagnosis.replicas.divergence import ReplicaDivergence, first_parting
from distdoctor.diagnosis.replicas.gradients import OBSERVED, Gradients, ReplicaGroup
from distdoctor.diagnosis.replicas.tensor_differences import BEFORE, GRADS, INITIAL, PARAMS, STATE, STATE_BEFORE
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Recording
from distdoctor.recording.trace.layout import DigestFlag, TensorFlag

ROWS = 30
COLUMNS = {GRADS: "grad", PARAMS: "param", STATE: "state"}
SHOWN_IN = {INITIAL: PARAMS, BEFORE: PARAMS, STATE_BEFORE: STATE}  # where a divergence between two steps is shown


@dataclass(frozen=True)
class Cell:
    """What is known of one kind of values in one layer. `since` is the first step in which they differ, None for never.

    `apart`: they differ at times in replicas that are told to be the same model, as in training that averages now and then.
    `not_finite` is the first step whose gradients hold NaN or infinity: equal bits of those are no agreement.
    `spoilt`: the step from which on they do; what was computed of them is not counted.
    """

    compared: int = 0
    since: int | None = None
    variants: tuple[tuple[int, ...], ...] = ()
    apart: bool = False
    not_finite: int | None = None
    spoilt: int | None = None

    @property
    def words(self) -> str:
        if self.since is not None:
            when = f"since step {self.since}" if self.since else "from the start"
            return f"DIFFER {when}: {' | '.join(named(variant) for variant in self.variants[:3])}"
        if self.not_finite is not None:
            return f"NaN or inf first in step {self.not_finite}"
        if self.spoilt is not None and self.compared:
            return f"agree before step {self.spoilt} ({self.compared} compared)"
        if self.apart:
            return f"apart at times, as training that averages now and then is ({self.compared} compared)"
        return f"agree ({self.compared} compared)" if self.compared else "-"


def render(recording: Recording) -> str:
    """The table as text; one line that says why where there is nothing to compare."""
    try:
        gradients = derived(Gradients, recording)
    except NotSeen as reason:
        return f"no verdict on replicas: {reason}\n"
    if not gradients.peers:
        return f"{_alone(gradients)}\n"
    blocks = [_block(gradients, peers) for peers in gradients.peers]
    parts = [tensor for one in gradients.ranks.values() for tensor in one.tensors.values() if len(tensor.agree) == 1]
    if parts:
        names = {tensor.name for tensor in parts}
        blocks.append(f"{len(names)} parameters are held in parts, each part by one rank: nothing to compare")
    return "\n\n".join(blocks) + "\n"


def _alone(gradients: Gradients) -> str:
    every = [tensor for one in gradients.ranks.values() for tensor in one.tensors.values()]
    held = [tensor for tensor in every if not tensor.flags & TensorFlag.BUFFER]
    if held and all(tensor.flags & TensorFlag.SHARDED for tensor in held):
        return "every rank holds its own part of every parameter: there are no replicas to compare"
    return "no two ranks are known to be replicas of one another: there is nothing to compare"


def _block(gradients: Gradients, peers: ReplicaGroup) -> str:
    steps = sorted({u.step for updates in gradients.updates(peers).values() for u in updates if u.digested and u.step})
    divergence = first_parting(gradients, peers)
    head = f"optimizer {peers.optimizer}, replicas {named(peers.ranks)} ({peers.by}), {len(steps)} steps looked at"
    layers = _layers(gradients, peers)
    rows = [("layer", "tensors", "|grad|", *COLUMNS)]
    for layer, names in list(layers.items())[:ROWS]:
        cells = [_cell(gradients, peers, names, steps, what, divergence) for what in COLUMNS]
        norm = _norm(gradients, peers, names, steps[-1]) if steps else math.nan
        rows.append((layer, str(len(names)), f"{norm:.3g}", *(cell.words for cell in cells)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    if len(layers) > ROWS:
        lines.append(f"and {len(layers) - ROWS} more layers")
    return "\n".join([head, *(f"  {line}" for line in lines)])


def _layers(gradients: Gradients, peers: ReplicaGroup) -> dict[str, list[str]]:
    """The parameters' names by the module that holds them; by the module above where there are too many."""
    names = list(
        dict.fromkeys(
            tensor.name
            for rank in peers.ranks
            if rank in gradients.ranks
            for tensor in gradients.ranks[rank].tensors.values()
            if tensor.optimizer == peers.optimizer
            and peers.lane in (tensor.agree, tensor.grad_agree)
            and not tensor.flags & TensorFlag.BUFFER
        )
    )
    for depth in (8, 4, 3, 2, 1):
        layers: dict[str, list[str]] = {}
        for name in names:
            parts = name.split(".")[:-1] or [name]
            layers.setdefault(".".join(parts[:depth]), []).append(name)
        if len(layers) <= ROWS:
            break
    return layers


def _cell(
    gradients: Gradients,
    peers: ReplicaGroup,
    names: Sequence[str],
    steps: Iterable[int],
    what: str,
    divergence: ReplicaDivergence | None,
) -> Cell:
    """Nothing differs before the divergence that the checks tell of, and nothing does where they tell of none."""
    to_agree = gradients.agreeing(peers, on_gradients=what == GRADS)
    if peers.by == OBSERVED and what != PARAMS:
        return Cell()  # nobody knows that they have to agree
    first = divergence is not None and SHOWN_IN.get(divergence.what, divergence.what) == what
    if divergence is not None and first:
        differing = [one for one in divergence.differences if one.name in names]
        if differing or not divergence.differences:
            return Cell(0, divergence.step, differing[0].variants if differing else divergence.variants)
    return _compared(gradients, peers, [name for name in names if name in to_agree], steps, what, divergence)


def _compared(
    gradients: Gradients,
    peers: ReplicaGroup,
    names: Sequence[str],
    steps: Iterable[int],
    what: str,
    divergence: ReplicaDivergence | None,
) -> Cell:
    compared, apart, column, not_finite = 0, False, COLUMNS[what], None
    spoilt = None if what == GRADS else _spoilt_from(gradients, peers, names, steps)
    for step in steps:
        if spoilt is not None and step >= spoilt:
            break
        rows = {
            rank: gradients.ranks[rank].digests(step, peers.optimizer)
            for rank in peers.ranks
            if rank in gradients.ranks
        }
        for name in names:
            values = {
                rank: int(found[name][column])
                for rank, found in rows.items()
                if name in found and not int(found[name]["flags"]) & DigestFlag.UNREADABLE
            }
            if len(values) < 2 or (what == STATE and not all(values.values())):
                continue
            compared += 1
            if what == GRADS and not_finite is None:
                norms = [float(found[name]["norm"]) for found in rows.values() if name in found]
                not_finite = None if all(map(math.isfinite, norms)) else step
            differs = len(set(values.values())) > 1
            if differs and divergence is not None and step >= divergence.step:
                return Cell(compared, step, variants_of(values))
            apart = apart or differs
    return Cell(compared, apart=apart, not_finite=not_finite, spoilt=spoilt)


def _spoilt_from(gradients: Gradients, peers: ReplicaGroup, names: Sequence[str], steps: Iterable[int]) -> int | None:
    """The step from which on the gradients hold NaN or infinity, as they do once a parameter does; None: the last are finite."""
    first = None
    for step in steps:
        found = (gradients.ranks[r].digests(step, peers.optimizer) for r in peers.ranks if r in gradients.ranks)
        norms = [float(rows[name]["norm"]) for rows in found for name in names if name in rows]
        if norms:
            first = None if all(map(math.isfinite, norms)) else step if first is None else first
    return first


def _norm(gradients: Gradients, peers: ReplicaGroup, names: Sequence[str], step: int) -> float:
    """Of the last step, on the first rank that has it."""
    for rank in peers.ranks:
        found = gradients.ranks[rank].digests(step, peers.optimizer) if rank in gradients.ranks else {}
        if found:
            return math.sqrt(sum(float(found[name]["norm"]) ** 2 for name in names if name in found))
    return math.nan
