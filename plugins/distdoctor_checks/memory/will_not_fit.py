"""
DD407 will-not-fit: the job needs more memory than the target machine has.

What it means    The highest memory measured here exceeds the target given by `check-memory --budget`.
Why it hurts     The job will run out of memory there, at the first step like the one measured.
How we know      Each rank's peak: the allocator's own on a device, otherwise the kernel's high-water mark of resident memory,
                 phase by phase. Parameters, gradients and optimizer state are counted storage by storage.
What to do       Start with the largest measured saving; each is computed from measured sizes, not promised. `distdoctor advise
                 --gpus` predicts the remedies, `advise --try` runs them.
When it is fine  A peak within the budget. Without a budget there is nothing to compare with, and the check reports that.
Source           torch.cuda.max_memory_allocated; proc(5), VmHWM.
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.finding import CERTAIN, ERROR, Finding, Prescription
from distdoctor.diagnosis.memory.budget import Budget, savings
from distdoctor.diagnosis.memory.memory import MIB, mib
from distdoctor.recording.recording import Recording
from distdoctor.testing.memory import memory_job


@check("DD407", "will-not-fit", severity=ERROR, live=False)
def examine(budget: Budget) -> Iterator[Finding]:
    if not budget.beyond:
        return
    rank, ranks = budget.fullest, len(list(budget.memory.each()))
    over = rank.peak - budget.bytes
    enough = [one for one in savings(rank, ranks) if one.bytes >= over]
    held = {name: rank.most(name) for name in ("parameters", "gradients", "state", "buffers")}
    kept = sum(size for size, *_ in rank.saved())
    parts = {**held, "activations": kept, "buckets": rank.buckets(), "libraries and data": rank.before_training}
    yield Finding(
        title=f"rank {rank.rank} needs {mib(rank.peak)}, {mib(over)} more than the budget of {mib(budget.bytes)}",
        ranks=budget.beyond,
        confidence=CERTAIN,
        place=rank.site,
        evidence={
            "peak": rank.peak,
            "budget": budget.bytes,
            "bytes_by_category": {k: v for k, v in parts.items() if v},
        },
        why=f"measured: {', '.join(f'{mib(v)} {k}' for k, v in parts.items() if v) or 'no category was counted'}"
        + ("" if enough else "; no single remedy saves that much"),
        prescriptions=tuple(
            Prescription(one.remedy, effect=f"{one.limit} {mib(one.bytes)}: {one.about}")
            for one in savings(rank, ranks)
        )
        or (Prescription("halve-the-micro-batch"),),
    )


def _job(budget: int) -> Recording:
    job = memory_job(2).trains(
        4,
        device=0,
        capacity=80_000 * MIB,
        peak=12_000 * MIB,
        parameters=2_000 * MIB,
        gradients=2_000 * MIB,
        state=4_000 * MIB,
    )
    for log in job.logs:
        log.environment = {"settings": {"budget_bytes": budget}}
    return job.recording()


def sick() -> Recording:
    return _job(8_000 * MIB)


def healthy() -> Recording:
    """The same job, with a budget that is enough."""
    return _job(16_000 * MIB)
