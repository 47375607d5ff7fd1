"""
DD402 activation-bound: activations fill the device.

What it means    The tensors that forward keeps for backward are the largest part of memory at the peak.
Why it hurts     The next longer sample, larger batch or library buffer causes an out-of-memory error.
How we know      The allocator's peak is at least 85 % of the device, and activations take more than parameters with gradients,
                 and more than optimizer state.
What to do       Recompute activations block by block, autocast to 16 bits, or halve the micro-batch and accumulate. `distdoctor
                 advise` predicts what each saves, `distdoctor advise --try` runs it.
When it is fine  A device with memory left: nothing is reported. A full device that never fails is a choice: this is a note.
Source           torch.utils.checkpoint; torch.amp; Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016.
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.finding import CERTAIN, NOTE, Finding, Prescription
from distdoctor.diagnosis.memory.memory import Memory, mib
from distdoctor.diagnosis.memory.nearly_full import fullest
from distdoctor.recording.recording import Recording
from distdoctor.testing.memory import job_on_device


@check("DD402", "activation-bound", severity=NOTE, live=False, stands_alone=True)
def examine(memory: Memory) -> Iterator[Finding]:
    found = fullest(memory, "activations")
    if found is None:
        return
    bound, ranks = found
    yield Finding(
        title=f"activations take {mib(bound.activations)} of a nearly full device of {mib(bound.capacity)}",
        ranks=ranks,
        confidence=CERTAIN,
        place=bound.site,
        evidence=bound.evidence,
        why=bound.why,
        prescriptions=(
            Prescription(
                "checkpoint-activations",
                effect=f"saves most of {mib(bound.activations)}, for one extra forward per step",
            ),
            Prescription(
                "mixed-precision",
                effect=f"up to {mib(bound.activations // 2)}: activations of matrix multiplications halve",
            ),
            Prescription("halve-the-micro-batch", effect=f"{mib(bound.activations // 2)}: activations halve"),
        ),
    )


HELD = {"parameters": 600, "gradients": 600, "state": 1_200}


def sick() -> Recording:
    return job_on_device(HELD, peak=7_400)


def healthy() -> Recording:
    """The same job on a device with room left."""
    return job_on_device(HELD, peak=6_000)
