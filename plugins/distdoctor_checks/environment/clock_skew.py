"""
DD611 clock-skew: the clocks of the hosts differ.

What it means    Right after one barrier, ranks read wall clocks that are more than a second apart.
Why it hurts     Logs of several hosts cannot be put in one order, certificates and leases expire early or late, and what compares
                 times of files on a shared disk (caches, checkpoints, make) takes new for old.
How we know      Every rank of the preflight read its clock after the same barrier, and sent it to the others.
What to do       Let chrony or systemd-timesyncd set the clock of each host.
When it is fine  Nothing reads times of several hosts together. distdoctor itself compares none.
Source           https://chrony-project.org/documentation.html
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.facts.trial import PreflightTrial
from distdoctor.diagnosis.finding import CERTAIN, WARNING, Finding, Prescription
from distdoctor.recording.preflight import TrialRank
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Recording
from distdoctor.testing.preflight import checked_machine

TOLERATED_SECONDS = 1.0  # a barrier ends on all ranks within much less


@check("DD611", "clock-skew", severity=WARNING, stands_alone=True)
def examine(trial: PreflightTrial) -> Iterator[Finding]:
    clocks = {rank: one for rank, one in trial.met().items() if one.clock_ns}
    times = [one.clock_ns / 1e9 for one in clocks.values()]
    usual = max(times, key=lambda at: sum(abs(other - at) <= TOLERATED_SECONDS for other in times), default=0.0)
    off = {rank: at - usual for rank, at in zip(clocks, times, strict=True)}
    odd = tuple(rank for rank, seconds in off.items() if abs(seconds) > TOLERATED_SECONDS)
    if odd:
        apart = max(off.values()) - min(off.values())
        yield Finding(
            title=f"the clock of {_hosts(clocks, odd)} ({named(odd)}) is {apart:,.1f} s away from that of the other hosts",
            ranks=odd,
            confidence=CERTAIN,
            evidence={named([rank]): f"{off[rank]:+,.1f} s" for rank in odd},
            why="Both clocks were read right after one barrier, which all ranks leave at the same moment.",
            prescriptions=(Prescription("set-the-clocks"),),
            undecided=len(odd) * 2 == len(clocks),
        )


def _hosts(ranks: dict[int, TrialRank], odd: tuple[int, ...]) -> str:
    return ", ".join(sorted({ranks[rank].host for rank in odd}))


NOON = 1_767_268_800_000_000_000


def sick() -> Recording:
    """Rank 3 is on a host whose clock is two minutes behind."""
    clocks = {rank: {"clock_ns": NOON + rank * 1_000_000} for rank in range(3)}
    return checked_machine({**clocks, 3: {"host": "node1", "clock_ns": NOON - 120_000_000_000}})


def healthy() -> Recording:
    """Two hosts, a few milliseconds apart."""
    late = {"host": "node1", "clock_ns": NOON + 40_000_000}
    return checked_machine({0: {"clock_ns": NOON}, 1: {"clock_ns": NOON}, 2: late, 3: late})
