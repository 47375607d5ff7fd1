"""
DD609 wrong-sums: all_reduce of known numbers gives something else than their sum.

What it means    Empty ranks reduced numbers whose sum is exact in float32, and at least one element came out wrong.
Why it hurts     Every gradient that crosses this machine may be wrong: training degrades or diverges without any error.
How we know      Each rank compared every element with the exact sum, for three sizes, several times each.
What to do       Take the host out of the job; test its memory, devices and links; update or pin NCCL and the drivers.
When it is fine  Never.
Source           Dixit et al., "Silent Data Corruptions at Scale", 2021; https://github.com/NVIDIA/nccl-tests (checks each result)
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.facts.trial import PreflightTrial
from distdoctor.diagnosis.finding import CERTAIN, ERROR, Finding, Prescription
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Recording
from distdoctor.testing.preflight import checked_machine


@check("DD609", "wrong-sums", severity=ERROR, stands_alone=True)
def examine(trial: PreflightTrial) -> Iterator[Finding]:
    met = trial.met()
    wrong = {rank: [size for size, (_, exact) in one.sums.items() if not exact] for rank, one in met.items()}
    ranks = tuple(rank for rank, sizes in wrong.items() if sizes)
    if ranks:
        sizes = sorted({size for found in wrong.values() for size in found})
        hosts = sorted({met[rank].host for rank in ranks})
        yield Finding(
            title=f"all_reduce of {', '.join(f'{size >> 10:,} KiB' for size in sizes)} gave {named(ranks)} a wrong sum",
            ranks=ranks,
            confidence=CERTAIN,
            evidence={named([rank]): ", ".join(f"{size >> 10:,} KiB" for size in wrong[rank]) for rank in ranks},
            why="The sums are of small whole numbers, which float32 holds exactly: no order of additions changes them.",
            prescriptions=(Prescription("without-this-host", change=f"start the job without {', '.join(hosts)}"),),
        )


def sick() -> Recording:
    """Rank 2 gets a wrong sum of 1 MiB."""
    return checked_machine({2: {"sums": {4096: (0.0002, True), 1 << 20: (0.001, False)}}})


def healthy() -> Recording:
    """Every sum is exact."""
    return checked_machine()
