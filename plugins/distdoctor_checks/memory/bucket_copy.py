"""
DD412 bucket-copy: DistributedDataParallel keeps a second copy of all gradients in its buckets.

What it means    Gradients are copied into buckets, reduced there and copied back. The buckets live as long as the wrapper,
                 including during forward, when activations need the memory.
Why it hurts     Memory holds a copy of all gradients at the peak.
How we know      The reducer reports the sizes of its buckets, and whether gradients are views of them (`check-memory`).
What to do       lazy_bucket_allocation=True (torch 2.15) allocates the buckets in backward and frees them afterwards;
                 gradient_as_bucket_view=True makes gradients views of them. Measured on torch 2.15, CPU, zero_grad to None, 128
                 MiB of buckets (benchmarks/memory_cost.py): the first took 128 MiB off the forward's peak and 30 off the
                 step's, the second 56 and 72. Use the first if activations are the peak, otherwise try both.
When it is fine  Gradients that are views of the buckets, lazily allocated buckets, and buckets that are small compared with the
                 rest.
Source           torch.nn.parallel.DistributedDataParallel.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.finding import CERTAIN, NOTE, Finding, Prescription
from distdoctor.diagnosis.memory.memory import MIB, Memory, RankMemory, mib
from distdoctor.diagnosis.source.statement_edits import wrapper_told
from distdoctor.recording.recording import Recording, SourceLine
from distdoctor.recording.trace.events import Wrapped
from distdoctor.recording.trace.layout import Phase

LEAST_BYTES = 16 * MIB
LEAST_SHARE = 0.05  # of the highest resident memory


@check("DD412", "bucket-copy", severity=NOTE, live=False, stands_alone=True)
def examine(memory: Memory) -> Iterator[Finding]:
    found = {rank.rank: rank for rank in memory.each() if _matters(rank)}
    if found:
        yield _finding(found, memory.recording.sources)


def _matters(rank: RankMemory) -> bool:
    buckets, peak = rank.buckets(), rank.most("peak") if rank.on_device else max(rank.phase_peaks().values(), default=0)
    return buckets >= LEAST_BYTES and buckets >= LEAST_SHARE * peak


def _finding(found: dict[int, RankMemory], sources: Mapping[str, str]) -> Finding:
    ranks = tuple(sorted(found))
    one = max(found.values(), key=RankMemory.buckets)
    size = one.buckets()
    return Finding(
        title=f"DistributedDataParallel keeps {mib(size)} of gradient buckets in addition to "
        f"{mib(one.most('gradients'))} of gradients",
        ranks=ranks,
        place=_wrapped_at(one) or one.site,
        evidence={"bucket_bytes": size, "gradient_bytes": one.most("gradients")},
        why="the reducer reports these sizes; gradients are not views of the buckets, which stay allocated during forward",
        prescriptions=tuple(_cures(one, size, sources)),
        confidence=CERTAIN,
    )


def _cures(one: RankMemory, size: int, sources: Mapping[str, str]) -> Iterator[Prescription]:
    if one.knows_lazy_buckets:
        yield Prescription(
            "make-buckets-lazily",
            change="DistributedDataParallel(model, ..., lazy_bucket_allocation=True)",
            effect=f"up to {mib(size)} less at the forward peak (the size of the buckets), less at the backward peak",
        )
    yield Prescription(
        "gradient-as-bucket-view",
        change="DistributedDataParallel(model, ..., gradient_as_bucket_view=True)",
        edits=wrapper_told(sources, _wrapped_at(one), "gradient_as_bucket_view", "True"),
        effect=f"up to {mib(size)} less if backward or the optimizer step is the peak",
    )


def _wrapped_at(rank: RankMemory) -> SourceLine:
    return next((wrapped.site for wrapped in rank.log.noted(Wrapped)), SourceLine())


def sick() -> Recording:
    from distdoctor.testing.memory import memory_job

    phases = {Phase.FORWARD: 800 * MIB, Phase.BACKWARD: 900 * MIB, Phase.OPTIMIZER: 850 * MIB}
    return memory_job(2).trains(8, gradients=128 * MIB).peaks(5, phases, buckets=128 * MIB).recording()


def healthy() -> Recording:
    from distdoctor.testing.memory import memory_job

    phases = {Phase.FORWARD: 800 * MIB, Phase.BACKWARD: 900 * MIB, Phase.OPTIMIZER: 850 * MIB}
    return memory_job(2).trains(8, gradients=128 * MIB).peaks(5, phases).recording()
