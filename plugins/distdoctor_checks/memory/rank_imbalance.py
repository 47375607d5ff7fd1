"""
DD405 rank-imbalance: one rank holds much more memory than the others.

What it means    The ranks share the work but not the memory: one rank holds the optimizer state, pipeline stages are cut
                 unevenly, or everything was first loaded onto one device.
Why it hurts     The fullest rank limits the model and batch that fit; memory on the others is paid for and unused.
How we know      Parameters, gradients, optimizer state and buffers are counted storage by storage on every rank (certain). If
                 these are equal, the device's own numbers are compared, then resident memory (likely).
What to do       Split what differs: fully_shard or ZeroRedundancyOptimizer for state, different cuts for stages,
                 map_location="cpu" (or the rank's own device) for torch.load.
When it is fine  Differences below a quarter or 64 MiB. Stages of a pipeline differ by design: only a note.
Source           torch.distributed.optim.ZeroRedundancyOptimizer; torch.load, map_location.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Any

import numpy as np

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.finding import CERTAIN, LIKELY, NOTE, WARNING, Confidence, Finding, Prescription
from distdoctor.diagnosis.memory.memory import MIB, Memory, RankMemory, mib
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Recording

LEAST_BYTES = 64 * MIB
LEAST_SHARE = 1.25  # times what the others have
RSS_BYTES = 512 * MIB
RSS_SHARE = 1.5  # libraries, caches of files and allocators differ between healthy processes too
CATEGORIES = {"parameters": "parameters", "gradients": "gradients", "state": "optimizer state", "buffers": "buffers"}


@check("DD405", "rank-imbalance", severity=WARNING, live=False)  # ranks are at different steps while the job runs
def examine(memory: Memory) -> Iterator[Finding]:
    ranks = [rank for rank in memory.each() if rank.most("parameters") or len(rank.rows) > 4]
    if len(ranks) < 2:
        return
    held = {rank.rank: sum(rank.most(name) for name in CATEGORIES) for rank in ranks}
    if all(rank.most("parameters") for rank in ranks):
        heavy = _heavier(held, LEAST_BYTES, LEAST_SHARE)
        if heavy:
            yield _by_category(memory, ranks, heavy)
            return
    if all(rank.on_device for rank in ranks):
        name, what, least, share = "peak", "allocated on its device", LEAST_BYTES, LEAST_SHARE
    else:
        name, what, least, share = "rss", "of resident memory", RSS_BYTES, RSS_SHARE
    sizes = {rank.rank: _usual(rank, name) for rank in ranks if len(rank.rows) > 4}
    heavy = _heavier(sizes, least, share)
    if heavy:
        yield _finding(memory, heavy, sizes, what, {}, LIKELY)


def _usual(rank: RankMemory, name: str) -> int:
    return int(np.median(rank.rows[name][len(rank.rows) // 2 :]))


def _heavier(sizes: dict[int, int], least: int, share: float) -> tuple[int, ...]:
    """The ranks that hold much more than the least of them; () when all do, or nearly."""
    if len(sizes) < 2:
        return ()
    bottom = min(sizes.values())
    heavy = [rank for rank, size in sizes.items() if size - bottom >= least and size >= share * max(bottom, 1)]
    return tuple(sorted(heavy, key=lambda rank: -sizes[rank])) if len(heavy) <= len(sizes) / 2 else ()


def _by_category(memory: Memory, ranks: list[RankMemory], heavy: tuple[int, ...]) -> Finding:
    by_name = {name: {rank.rank: rank.most(name) for rank in ranks} for name in CATEGORIES}
    sizes = {rank.rank: sum(own[rank.rank] for own in by_name.values()) for rank in ranks}
    return _finding(memory, heavy, sizes, "of parameters, gradients, optimizer state and buffers", by_name, CERTAIN)


def _finding(
    memory: Memory,
    heavy: tuple[int, ...],
    sizes: dict[int, int],
    what: str,
    by_name: dict[str, dict[int, int]],
    sure: Confidence,
) -> Finding:
    others = [rank for rank in sizes if rank not in heavy]
    usual = int(median(sizes[rank] for rank in others))
    top = sizes[heavy[0]]
    more = {name: own[heavy[0]] - int(median(own[rank] for rank in others)) for name, own in by_name.items()}
    most = max(more, key=lambda name: more[name]) if more else ""
    staged = bool(more) and more["parameters"] >= LEAST_BYTES // 4
    why = f"{named(heavy)}: {mib(top)} {what}, {named(others)}: {mib(usual)}"
    if most:
        why += f"; the difference is {', '.join(f'{mib(v)} of {CATEGORIES[n]}' for n, v in more.items() if v >= MIB)}"
    return Finding(
        title=f"{named(heavy)} {'hold' if len(heavy) > 1 else 'holds'} {mib(top - usual)} more than the other ranks"
        + (f", mostly {CATEGORIES[most]}" if most else ""),
        ranks=heavy,
        place=memory.ranks[heavy[0]].site,
        evidence={"bytes_by_rank": sizes, "more_by_category": more},
        why=why,
        prescriptions=(
            Prescription(
                "divide-the-memory",
                effect=f"up to {mib((top - usual) * (1 - 1 / len(sizes)))} less on the fullest rank",
            ),
        ),
        confidence=sure,
        severity=NOTE if staged else WARNING,
    )


def sick() -> Recording:
    from distdoctor.testing.memory import memory_job

    same: dict[str, Any] = {"parameters": 128 * MIB, "gradients": 128 * MIB}
    return memory_job(4).trains(8, state=lambda rank, step: 256 * MIB * (rank == 0), **same).recording()


def healthy() -> Recording:
    from distdoctor.testing.memory import memory_job

    same: dict[str, Any] = {"parameters": 128 * MIB, "gradients": 128 * MIB, "state": 256 * MIB}
    return memory_job(4).trains(8, rss=lambda rank, step: (900 + 20 * rank) * MIB, **same).recording()
