"""
DD214 corrupted-replica: a single bit differs on one rank, and nothing in the recording explains it.

What it means    One number in one parameter or gradient of one rank differs from the other ranks' in one bit. Programs do not
                 do that.
Why it hurts     Silent data corruption: a flipped exponent bit ruins the model at once, a flipped mantissa bit lets the
                 replicas drift. Hardware that corrupts once tends to do it again.
How we know      The digests of one tensor differ, everything else agrees, and the sums of the tensor's 64-bit words differ by a
                 power of two. With three or more replicas the majority identifies the rank; with two, it is the rank that finds
                 weights other than its own last step left.
What to do       Test the memory and the device of that host (ECC counters, memory tests, dcgmi diag), restore the replica from
                 the others, and take the host out of service if it happens twice.
When it is fine  A script that changes exactly one element by hand can look the same; treat it as DD203 then.
Source           Dixit et al., Silent Data Corruptions at Scale, 2021; Llama 3 report, section on interruptions.
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.finding import ERROR, LIKELY, Finding, Prescription
from distdoctor.diagnosis.replicas.divergence import (
    ReplicaDivergence,
    ReplicaDivergences,
    changed_between_steps,
    single_bit,
)
from distdoctor.diagnosis.replicas.tensor_differences import BEFORE, GRADS, PARAMS
from distdoctor.diagnosis.replicas.wording import evidence, places, sides, tie
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Recording

_BITS = {"float32": 32, "float64": 64, "float16": 16, "bfloat16": 16, "int64": 64, "int32": 32}
_MANTISSA = {"float32": 23, "float64": 52, "float16": 10, "bfloat16": 7}


@check("DD214", "corrupted-replica", severity=ERROR, family="replicas", specificity=20, at_most=LIKELY)
def examine(partings: ReplicaDivergences) -> Iterator[Finding]:
    for parting in partings.found:
        bit = single_bit(parting)
        if bit is None or parting.first is None or parting.what not in (BEFORE, GRADS, PARAMS):
            continue
        changed = changed_between_steps(parting, partings.gradients) if parting.is_tie else ()
        ranks = changed or parting.odd
        what = "gradient" if parting.what == "gradients" else "parameter"
        first = parting.first
        yield Finding(
            title=f"{_when(parting)}: one bit of the {what} {first.name} differs on {named(ranks)}: "
            f"{_bit_words(bit, first.tensor.dtype)}",
            ranks=ranks,
            place=parting.site,
            places=places(parting),
            evidence=evidence(
                parting, bit_of_64=bit, bit=_bit_words(bit, first.tensor.dtype), dtype=first.tensor.dtype
            ),
            why=". ".join(
                part
                for part in (
                    f"only {first.name} {first.tensor.shape} of {parting.compared} tensors differs, {sides(parting)}, by 2^{bit} "
                    "in the sum of its 64-bit words: one bit flipped in memory, on a link or in the device",
                    "" if len(ranks) < len(parting.updates) else tie(parting),
                )
                if part
            ),
            prescriptions=(Prescription("check-hardware"), Prescription("change-every-replica")),
            confidence=LIKELY,
            at_ns=parting.at_ns,
            explains=(parting.key,),
            undecided=parting.is_tie and not changed,
        )


def _when(parting: ReplicaDivergence) -> str:
    if parting.what == BEFORE and parting.exact and parting.agreed > 0:
        return f"between steps {parting.agreed} and {parting.step}"
    return parting.when


def _bit_words(bit: int, dtype: str) -> str:
    """`bit 20 of a float32 (mantissa)`."""
    width = _BITS.get(dtype)
    if width is None:
        return f"bit {bit} of a 64-bit word"
    place, mantissa = bit % width, _MANTISSA.get(dtype)
    if mantissa is None:
        return f"bit {place} of an {dtype}"
    part = "sign" if place == width - 1 else "exponent" if place >= mantissa else "mantissa"
    return f"bit {place} of a {dtype} ({part})"


def sick() -> Recording:
    from distdoctor.testing.gradients import trained_job

    job = trained_job(3).initial().step()
    return job.step(before={1: 1}, params={1: 1}, sums={1: 1 << 52}, names=["body.weight"]).recording()


def healthy() -> Recording:
    from distdoctor.testing.gradients import trained_job

    return trained_job(3).initial().step().step().recording()
