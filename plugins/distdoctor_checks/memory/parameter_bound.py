"""
DD404 parameter-bound: parameters and gradients fill the device.

What it means    The model itself, with its gradients, is the largest part of memory at the peak.
Why it hurts     The next longer sample, larger batch or library buffer causes an out-of-memory error.
How we know      The allocator's peak is at least 85 % of the device, and parameters with gradients take more than optimizer
                 state, and more than activations.
What to do       Shard the model over the ranks (fully_shard), or keep the shards in host memory. `distdoctor advise` predicts
                 what each saves, `distdoctor advise --try` runs it.
When it is fine  A device with memory left: nothing is reported. A full device that never fails is a choice: this is a note.
Source           torch.distributed.fsdp.fully_shard; Rajbhandari et al., ZeRO, 2020.
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.finding import CERTAIN, NOTE, Finding, Prescription
from distdoctor.diagnosis.memory.memory import Memory, mib
from distdoctor.diagnosis.memory.nearly_full import fullest
from distdoctor.recording.recording import Recording
from distdoctor.testing.memory import job_on_device


@check("DD404", "parameter-bound", severity=NOTE, live=False, stands_alone=True)
def examine(memory: Memory) -> Iterator[Finding]:
    found = fullest(memory, "weights")
    if found is None:
        return
    bound, ranks = found
    yield Finding(
        title=f"parameters and gradients take {mib(bound.weights)} of a nearly full device of {mib(bound.capacity)}",
        ranks=ranks,
        confidence=CERTAIN,
        place=bound.site,
        evidence=bound.evidence,
        why=bound.why,
        prescriptions=(
            Prescription(
                "fully-shard",
                effect=f"{mib(bound.sharded(bound.weights + bound.optimizer))} per rank, divided by {bound.ranks}",
            ),
            Prescription(
                "offload-to-host", effect=f"{mib(bound.weights + bound.optimizer)} per rank move to host memory"
            ),
            Prescription(
                "set-gradients-to-none",
                effect="frees the gradients during forward if zero_grad(set_to_none=False) keeps them",
            ),
        ),
    )


HELD = {"parameters": 3_000, "gradients": 3_000}


def sick() -> Recording:
    return job_on_device(HELD, peak=7_400)


def healthy() -> Recording:
    """The same job on a device with room left."""
    return job_on_device(HELD, peak=6_000)
