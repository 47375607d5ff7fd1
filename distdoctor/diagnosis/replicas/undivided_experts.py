"""Experts that are given the rows of all ranks, and whose gradients are used as the sum over these, where others are averaged.

A loss is a mean over the rows of one rank. What is averaged over the ranks is that of one process with all rows; what comes back
through the exchange of rows is a sum over the ranks, and is that only after a division by their number.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from distdoctor.diagnosis.replicas.gradients import Gradients, ReplicaGroup
from distdoctor.diagnosis.replicas.own_parts import rows_traded, trading_ranks
from distdoctor.diagnosis.replicas.rank_gradients import RankGradients, TensorInfo
from distdoctor.diagnosis.replicas.used_factor import is_close, losses_differ, used_factors
from distdoctor.diagnosis.source.source_file import source_file
from distdoctor.recording.recording import SourceLine
from distdoctor.recording.trace.layout import SPOTS

FEWEST = 3  # steps
OTHERS = 2  # parameters that are sampled before one is for being an expert's
_SCALE_FREE = (
    "Adam",
    "Adagrad",
    "Adafactor",
    "Lion",
    "Muon",
    "RMSprop",
    "Lamb",
)  # steps hardly know the gradients' size


@dataclass(frozen=True)
class UndividedExperts:
    """`parameter`: of an expert, looked at in so many `steps`, is used as the sum over the losses of `times` ranks. `scale_free`:
    the source steps by gradients over their size. `averaged_over`: of its replicas, where there are some."""

    peers: ReplicaGroup
    parameter: TensorInfo
    steps: int
    scale_free: bool
    times: int
    averaged_over: tuple[int, ...] = ()


def undivided_experts(gradients: Gradients, peers: ReplicaGroup, sources: Mapping[str, str]) -> UndividedExperts | None:
    """None also where the source divides in a backward of its own, or gives experts a learning rate of their own."""
    ranks = [gradients.ranks[rank] for rank in peers.ranks if rank in gradients.ranks]
    if len(ranks) < len(peers.ranks) or any(rows_traded(own) < 2 for own in ranks):  # they bring them back, too
        return None
    factors = list(used_factors(gradients, peers))
    averaged = [step for step, factor in factors if is_close(factor, 1.0)]
    if not FEWEST <= len(averaged) == len(factors):
        return None
    kept: dict[str, list[set[int]]] = defaultdict(list)  # name -> of each rank, the steps that use what it has computed
    for own in ranks:
        for name, steps in _used_as_computed(own, peers.optimizer).items():
            kept[name].append(steps & set(averaged))
    found = next(
        (name for name, steps in kept.items() if len(steps) == len(ranks) and min(map(len, steps)) >= FEWEST), ""
    )
    over: tuple[int, ...] = ()
    looks = len(averaged)
    if not found:
        found, over, looks = _averaged_over_replicas(gradients, peers)
    parameter = ranks[0].info(found, peers.optimizer) if found else None
    if parameter is None or not losses_differ(gradients, peers.ranks) or _is_scaled_elsewhere(sources):
        return None
    text = "".join(sources.values())
    scale_free = any(word in text for word in _SCALE_FREE) and "SGD" not in text
    times = len(peers.ranks) // max(1, len(over))
    return UndividedExperts(peers, parameter, looks, scale_free, times, over)


def _averaged_over_replicas(gradients: Gradients, peers: ReplicaGroup) -> tuple[str, tuple[int, ...], int]:
    """(a sampled parameter, the ranks of one set of its replicas, steps in which it was their mean that was used); "" for none.

    The sets of replicas hold the same names and together all ranks, and rows are traded among ranks of which each set has one:
    so each of them has another part of what the rows go through. Heads for tasks of several ranks are no such parts.
    """
    sets = [
        one
        for one in gradients.peers
        if one.optimizer == peers.optimizer and one.names and set(one.ranks) < set(peers.ranks)
    ]
    alike = [one for one in sets if one.names == sets[0].names and len(one.ranks) == len(sets[0].ranks)]
    if len(alike) < 2 or sorted(rank for one in alike for rank in one.ranks) != sorted(peers.ranks):
        return "", (), 0
    factors = [[factor for _, factor in used_factors(gradients, one)] for one in alike]
    steps = min(map(len, factors))
    if steps < FEWEST or not all(is_close(factor, 1.0) for own in factors for factor in own):
        return "", (), 0
    for members in (one for rank in peers.ranks for one in trading_ranks(gradients.ranks[rank])):
        if any(len(members & set(one.ranks)) != 1 for one in alike) or not losses_differ(gradients, members):
            return "", (), 0
    own = gradients.ranks[alike[0].ranks[0]]
    sampled = (own.tensors.get(int(row["tensor"])) for row in own.log.rows("spots"))
    name = next((one.name for one in sampled if one is not None and one.name in alike[0].names), "")
    return name, alike[0].ranks, steps


def told_apart(sources: Mapping[str, str], reduced: SourceLine) -> SourceLine:
    """The condition or loop that treats experts in another way, in the function that reduces the others."""
    file = source_file(sources, reduced.path)
    for node in ast.walk(file.function_at(reduced.line)) if file is not None else ():
        head = node.test if isinstance(node, ast.If) else node.iter if isinstance(node, ast.For) else None
        if head is not None and "expert" in ast.unparse(head).lower():
            return SourceLine(reduced.path, head.lineno, reduced.function)
    return SourceLine()


def _used_as_computed(own: RankGradients, optimizer: int) -> dict[str, set[int]]:
    """Of parameters of this rank alone: the steps in which the optimizer used what backward had left, if it always did."""
    found: dict[str, set[int]] = defaultdict(set)
    others: set[str] = set()
    for row in own.log.rows("spots"):
        tensor, step = own.tensors.get(int(row["tensor"])), int(row["step"])
        if tensor is None or tensor.optimizer != optimizer or step > own.until or tensor.agree:
            continue
        computed, used = ([float(row[f"{kind}_{spot}"]) for spot in range(SPOTS)] for kind in ("own", "used"))
        if computed != used:
            others.add(tensor.name)
        elif any(computed):
            found[tensor.name].add(step)
    named = [name for name in {*found, *others} if "expert" in name.lower()]
    if not named and len(others) < OTHERS:
        return {}  # what is used as computed may be a part of this rank alone that is no expert
    return {name: steps for name, steps in found.items() if name not in others and (name in named or not named)}


def _is_scaled_elsewhere(sources: Mapping[str, str]) -> bool:
    files = [file for path in sources if (file := source_file(sources, path)) is not None]
    passes = (
        one for file in files for one in file.nodes(ast.FunctionDef) if one.name == "backward" or "hook" in one.name
    )
    return any(map(_divides, passes)) or any(
        _is_group_of_experts(one) for file in files for one in file.nodes(ast.Dict)
    )


def _is_group_of_experts(group: ast.Dict) -> bool:
    """Whether it is an optimizer's group that mentions experts and has a learning rate of its own: anything may stand there."""
    keys = {key.value for key in group.keys if isinstance(key, ast.Constant)}
    return {"params", "lr"} <= keys and "expert" in ast.unparse(group).lower()


def _divides(node: ast.AST) -> bool:
    return any(
        (isinstance(one, (ast.BinOp, ast.AugAssign)) and isinstance(one.op, (ast.Div, ast.Mult)))
        or (isinstance(one, ast.Attribute) and one.attr in ("div", "div_", "mul", "mul_"))
        for one in ast.walk(node)
    )
