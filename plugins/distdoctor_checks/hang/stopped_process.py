"""
DD117 stopped-process: a rank is not running: stopped by a signal, a debugger or the freezer, or blocked inside the kernel.

What it means    The process of one rank is in state T (SIGSTOP, Ctrl-Z), in state t (a debugger), frozen by its cgroup (docker
                 pause), or has long been in state D (a disk, a network file system or a driver does not answer).
Why it hurts     The others wait, no log explains why, and torchrun considers the rank healthy.
How we know      The kernel reports it: /proc/PID/stat, TracerPid and the freezer's state. State D counts after ten seconds.
What to do       kill -CONT PID, detach the debugger, or thaw the cgroup; for state D check the file system or the driver
                 (dmesg).
When it is fine  Somebody is debugging the process on purpose.
Source           man 5 proc, man 7 cgroups.
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.finding import CERTAIN, ERROR, LIKELY, Finding, Prescription, Stalls
from distdoctor.diagnosis.hang.in_logs import LogFacts, claimed
from distdoctor.diagnosis.hang.in_ras import silent_processes
from distdoctor.diagnosis.hang.live.rank_activity import RankActivity, is_held_by_kernel
from distdoctor.diagnosis.hang.live.stall import Stall, evidence_of
from distdoctor.recording.recording import Recording
from distdoctor.recording.stacks import STOPPED, TRACED, ProcessStacks
from distdoctor.testing.stacks import frame, in_collective, looked_at, rank


@check("DD117", "stopped-process", severity=ERROR, family="hang", stands_alone=True, stalls=Stalls.MAYBE)
def examine(standstill: Stall | None, log: LogFacts | None) -> Iterator[Finding]:
    if log is not None:
        yield from claimed(silent_processes(log.ras), 93)
    if standstill is None:
        return
    for standing in standstill.standings.values():
        process = standing.process
        if process is None:
            continue
        in_kernel = is_held_by_kernel(process) and _long(process, standstill)
        if not process.is_stopped and not in_kernel:
            continue
        state, change = _words(process)
        yield Finding(
            title=f"is not running: pid {process.pid} {state}{_since(process)}",
            ranks=(standing.rank,),
            confidence=LIKELY if in_kernel else CERTAIN,
            place=standing.site,
            places=standstill.places(standing),
            evidence=evidence_of(process) | ({"tracer pid": process.tracer} if process.tracer else {}),
            why=_why(standing, standstill),
            prescriptions=(Prescription("continue-the-process", change=change),),
        )


def _long(process: ProcessStacks, standstill: Stall) -> bool:
    return process.still_seconds is not None and standstill.exceeds_patience(process.still_seconds)


def _since(process: ProcessStacks) -> str:
    return f" and last ran {process.still_seconds:.0f} s ago" if process.still_seconds else ""


def _words(process: ProcessStacks) -> tuple[str, str]:
    """(what holds it, how to let it go)."""
    if process.frozen:
        return (
            "is frozen by its cgroup",
            "thaw it: docker unpause, or write THAWED (0) to the cgroup's freezer.state (cgroup.freeze)",
        )
    if process.state == TRACED:
        by = f" by pid {process.tracer}" if process.tracer else ""
        return f"is stopped by a debugger{by}", f"let the debugger{by} continue or detach"
    if process.state == STOPPED:
        return "is stopped by a signal (SIGSTOP, Ctrl-Z)", f"kill -CONT {process.pid}"
    where = f" in {process.wchan}" if process.wchan else ""
    return (
        f"is held inside the kernel{where} (state D)",
        "check the disk, the network file system or the driver: dmesg, /proc/PID/stack",
    )


def _why(standing: RankActivity, standstill: Stall) -> str:
    parts = [standstill.who_waits] if standstill.who_waits else []
    return "; ".join(
        [
            *parts,
            f"rank {standing.rank} was at this line when it was stopped" if standing.site else "no stack could be read",
        ]
    )


def sick() -> Recording:
    """Rank 1 got a SIGSTOP."""
    return looked_at(in_collective(0, still=4.0), rank(1, frame("train.py:57 save"), still=4.0, state=STOPPED))


def healthy() -> Recording:
    """Rank 1 reads from a disk, which takes a moment."""
    return looked_at(in_collective(0, still=1.0), rank(1, frame("train.py:57 load"), still=0.4, state="D"))
