"""
DD603 version-skew: the ranks run different versions or different code.

What it means    Python, torch, NCCL, distdoctor or the Python files of the working directory are not the same on all hosts.
Why it hurts     Collectives change between versions: ranks hang at init or in the first collective, or compute different
                 numbers; different code means a different sequence of collectives.
How we know      Every rank of the preflight sent the others its versions and a digest of the Python files in its directory.
What to do       Install the same lock file, or start the same image, on every host; copy the code again.
When it is fine  Differences only in Python's patch version are usually harmless.
Source           https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.facts.trial import PreflightTrial
from distdoctor.diagnosis.finding import CERTAIN, ERROR, Finding, Prescription
from distdoctor.diagnosis.rank_groups import variants_of
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Recording
from distdoctor.testing.preflight import VERSIONS, checked_machine


@check("DD603", "version-skew", severity=ERROR, stands_alone=True)
def examine(trial: PreflightTrial) -> Iterator[Finding]:
    ranks = trial.met()
    for name in dict.fromkeys(name for one in ranks.values() for name in one.versions):
        versions = {rank: one.versions.get(name, "none") for rank, one in ranks.items()}
        sides = [(versions[members[0]], members) for members in variants_of(versions)]
        if len(sides) > 1:
            (usual, _), *others = sides
            odd = tuple(sorted(rank for _, members in others for rank in members))
            yield Finding(
                title=f"{named(odd)} {'have' if len(odd) > 1 else 'has'} {name} {others[0][0]}, the others {usual}",
                ranks=odd,
                confidence=CERTAIN,
                evidence={name: "; ".join(f"{value} on {named(members)}" for value, members in sides)},
                why="Ranks of one job must run the same versions and the same code.",
                prescriptions=(
                    Prescription("same-environment", change=f"install {name} {usual} on {_hosts(trial, odd)}"),
                ),
            )


def _hosts(trial: PreflightTrial, ranks: tuple[int, ...]) -> str:
    return ", ".join(sorted({trial.found.ranks[rank].host for rank in ranks}))


def sick() -> Recording:
    """Rank 3 is on a host with another torch."""
    return checked_machine({3: {"host": "node1", "versions": {**VERSIONS, "torch": "2.14.1"}}})


def healthy() -> Recording:
    """All ranks have the same, on two hosts."""
    return checked_machine({3: {"host": "node1"}})
