"""
DD510 full-precision: every matrix multiplication runs in fp32 on a device with faster 16-bit units.

What it means    Neither autocast nor 16-bit parameters are in use, and the device has tensor cores.
Why it hurts     Tensor cores do several times as many operations per second in 16 bits, and saved activations take half the
                 memory.
How we know      The autograd graph is read when the third backward begins: the tensors that each multiplication saved show its
                 precision (certain). The gain here is unknown until measured, so this is only a possibility.
What to do       Measure first: `distdoctor compare --strategies ddp,amp` gives the ratio on this machine, `distdoctor advise
                 --try mixed-precision` the memory. Then autocast to bf16.
When it is fine  Multiplications too small to fill the device, devices without tensor cores, numerics that need fp32. TF32
                 already gives half of the gain, so nothing is reported with it.
Source           torch.amp; torch.set_float32_matmul_precision; NVIDIA, Training with mixed precision.
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.facts.events import RankEvents
from distdoctor.diagnosis.finding import NOTE, POSSIBLE, Finding, Place, Prescription
from distdoctor.diagnosis.memory.memory import MIB, mib
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Job, Recording
from distdoctor.recording.trace.events import FullPrecision
from distdoctor.testing.rank_trace import TraceBuilder

WITH_TENSOR_CORES = 70  # compute capability 7.0, Volta
LEAST_BYTES = 64 * MIB  # kept by the products of a step: below, launching kernels takes longer than computing


@check("DD510", "full-precision", severity=NOTE, live=False, stands_alone=True)
def examine(noted: RankEvents) -> Iterator[Finding]:
    found = {
        rank: seen
        for rank, seen in noted.events(FullPrecision)
        if seen.capability >= WITH_TENSOR_CORES and seen.nbytes >= LEAST_BYTES and seen.mode == "ieee"
    }
    if not found:
        return
    ranks = tuple(sorted(found))
    seen = found[ranks[0]]
    device, capability, site = seen.device, seen.capability, seen.site
    yield Finding(
        title=f"every matrix multiplication runs in fp32 on {device}, which has 16-bit matrix units",
        ranks=ranks,
        confidence=POSSIBLE,
        place=site,
        places=(Place(site, ranks, "backward of these multiplications"),),
        evidence={"device": device, "capability": capability / 10, "kept_bytes": seen.nbytes, "tf32": False},
        why=f"the multiplications on {named(ranks)} keep {mib(seen.nbytes)} for backward, all in fp32, and TF32 is off",
        prescriptions=(
            Prescription(
                "mixed-precision",
                effect=f"up to {mib(seen.nbytes // 2)} of memory; `distdoctor compare --strategies ddp,amp` measures the time",
            ),
        ),
    )


def _job(precision: str) -> Recording:
    log = TraceBuilder(0, world_size=1)
    log.note(FullPrecision("NVIDIA A100", precision, 80, 900 * MIB), site="train.py:31 train")
    return Recording(Job(argv=("train.py",), world_size=1), {0: log.build()})


def sick() -> Recording:
    return _job("ieee")


def healthy() -> Recording:
    """TF32 is on."""
    return _job("tf32")
