"""Ranks that hold parts of one model (tensor parallel), and are given different samples.

What each makes of its samples with its part of the weights is a part of one sum: of different samples it is none of anything.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from distdoctor.diagnosis.data.samples import SampleOrders, Together
from distdoctor.diagnosis.facts.replicas import Replicas
from distdoctor.recording.recording import RankTrace, Recording, SourceLine
from distdoctor.recording.trace.layout import Op, ReduceOp, TensorFlag

STEPS = 3  # in which parts are summed
MOST_RANKS = 64  # whose calls are looked at: groups are alike


@dataclass(frozen=True, eq=False)
class FedApart:
    """`passes`: what the ranks read side by side. `summed_at`: where what they make of it is summed, in `steps` steps."""

    passes: Together
    summed_at: SourceLine
    shape: str
    steps: int


def fed_apart(orders: SampleOrders, replicas: Replicas, recording: Recording) -> Iterator[FedApart]:
    """The first training pass of each loader that deals different shares to such ranks. Those that average gradients (of shards,
    too) have to read different samples."""
    summing: dict[tuple[int, ...], dict[str, tuple[int, SourceLine]]] = {}
    for rank in sorted(recording.ranks)[:MOST_RANKS]:
        log = recording.ranks[rank]
        if (log.rows("tensors")["flags"] & TensorFlag.SHARDED).any():
            for ranks, sums in _sums(log).items():
                if ranks[0] == rank and all(len({*one.ranks} & {*ranks}) < 2 for one in replicas.sets):
                    summing[ranks] = sums
    told: set[str] = set()
    for together in orders.together() if summing else ():
        for ranks, sums in summing.items():
            passes = together.among(ranks)
            if together.trains and str(passes.one.made_line if passes.passes else "") not in told:
                size = passes.one.batch_size if len(passes.passes) == len(ranks) else 0
                found = next((shape for shape in sums if size > 1 and shape.startswith(f"[{size}, ")), "")
                if found and sums[found][0] >= STEPS and _are_other_shares(passes):
                    told.add(str(passes.one.made_line))
                    yield FedApart(passes, sums[found][1], found, sums[found][0])


def _are_other_shares(together: Together) -> bool:
    passes = list(together.passes.values())
    one = passes[0]
    return (
        all(p.sharded and p.comparable and p.data.same_content(one.data) for p in passes)
        and len({p.num_replicas for p in passes}) == 1
        and len({p.sampler_rank for p in passes}) == len(passes)
        and all(not np.array_equal(p.first, one.first) for p in passes[1:])
    )


def _sums(log: RankTrace) -> dict[tuple[int, ...], dict[str, tuple[int, SourceLine]]]:
    """ranks -> shape -> in how many steps that was summed over them before a backward, and the first line."""
    calls = log.calls
    begins = {int(row["step"]) - 1: int(row["forward_ended_ns"]) for row in log.rows("times")}
    wanted = (calls["op"] == Op.ALL_REDUCE) & (calls["reduce_op"] == ReduceOp.SUM)
    members = {group.name: tuple(sorted(group.ranks)) for group in log.group_list()}
    found: dict[tuple[int, ...], dict[str, dict[int, SourceLine]]] = defaultdict(lambda: defaultdict(dict))
    for row in calls[wanted]:
        step, ranks = int(row["step"]), members.get(log.text(int(row["group"])), ())
        if len(ranks) > 1 and int(row["entered_ns"]) < begins.get(step, 0):
            found[ranks][log.text(int(row["shape"]))].setdefault(step, log.site(int(row["site"])))
    return {
        ranks: {shape: (len(steps), steps[min(steps)]) for shape, steps in shapes.items()}
        for ranks, shapes in found.items()
    }
