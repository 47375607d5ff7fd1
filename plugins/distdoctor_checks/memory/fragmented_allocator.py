"""
DD406 fragmented-allocator: the CUDA allocator has reserved far more memory than was ever in use at once.

What it means    Free blocks lie between used ones and are too small for the next request, so the allocator asks the device for
                 more. Sizes that change from step to step (sequence lengths, evaluation batches) cause this.
Why it hurts     The job runs out of memory although enough is free; before that, every retry returns the whole cache and waits
                 for the device.
How we know      The allocator's own counters: reserved bytes exceed the highest allocated bytes by a quarter and a GiB, and
                 most of the device is taken, or allocations had to be retried.
What to do       Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, or pad to a few sizes.
When it is fine  A cache that fills up to the peak and is reused; anything while the device has plenty of memory left.
Source           torch.cuda.memory_stats; PyTorch's notes on CUDA memory management.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.finding import CERTAIN, LIKELY, WARNING, Finding, Prescription
from distdoctor.diagnosis.memory.memory import MIB, Memory, RankMemory, mib
from distdoctor.recording.recording import Recording

LEAST_SHARE = 0.25  # of what is reserved
LEAST_BYTES = 1024 * MIB
FULL = 0.7  # of the device
LEAST_STEPS = 12


@check("DD406", "fragmented-allocator", severity=WARNING, stands_alone=True)
def examine(memory: Memory) -> Iterator[Finding]:
    found = {rank.rank: rank for rank in memory.each() if rank.on_device and _is_fragmented(rank)}
    if found:
        yield _finding(found)


def _unused(rank: RankMemory) -> int:
    """Reserved, and more than was ever in use at once."""
    return max(0, rank.last("reserved") - rank.most("peak"))


def _is_fragmented(rank: RankMemory) -> bool:
    reserved, unused = rank.last("reserved"), _unused(rank)
    tight = rank.last("retries") > 0 or reserved >= FULL * max(1, rank.last("capacity"))
    return len(rank.rows) >= LEAST_STEPS and unused >= max(LEAST_BYTES, LEAST_SHARE * reserved) and tight


def _finding(found: dict[int, RankMemory]) -> Finding:
    ranks = tuple(sorted(found))
    worst = max(found.values(), key=_unused)
    unused, retries = _unused(worst), worst.last("retries")
    return Finding(
        title=f"{mib(unused)} of {mib(worst.last('reserved'))} on the device are reserved but were never used",
        ranks=ranks,
        place=worst.site,
        evidence={
            "reserved_bytes": worst.last("reserved"),
            "peak_bytes": worst.most("peak"),
            "inactive_split_bytes": worst.last("inactive"),
            "retries": retries,
        },
        why=f"at most {mib(worst.most('peak'))} were allocated at once; {mib(worst.last('inactive'))} are in split blocks"
        + (f"; {retries} allocations had to be retried" if retries else ""),
        prescriptions=(
            Prescription("expand-segments", effect=f"up to {mib(unused)} less reserved memory, the part never in use"),
        ),
        confidence=CERTAIN if retries else LIKELY,
    )


def sick() -> Recording:
    from distdoctor.testing.memory import memory_job

    sizes: dict[str, Any] = {
        "allocated": 20_000 * MIB,
        "peak": 30_000 * MIB,
        "reserved": 70_000 * MIB,
        "inactive": 30_000 * MIB,
    }
    return memory_job(2).trains(16, **sizes, capacity=80_000 * MIB, device=0, retries=3).recording()


def healthy() -> Recording:
    """The cache is as large as the peak once was."""
    from distdoctor.testing.memory import memory_job

    sizes: dict[str, Any] = {
        "allocated": 20_000 * MIB,
        "peak": 68_000 * MIB,
        "reserved": 70_000 * MIB,
        "inactive": 3_000 * MIB,
    }
    return memory_job(2).trains(16, **sizes, capacity=80_000 * MIB, device=0).recording()
