"""
DD608 stacks-not-readable: a process's stacks cannot be read; the finding names the setting or the package that is missing.

What it means    Reading another process's memory requires permission to ptrace it. Another user's process,
                 kernel.yama.ptrace_scope, a container without CAP_SYS_PTRACE and a process that made itself undumpable all
                 refuse it. It also takes py-spy, which has to be installed beside distdoctor.
Why it hurts     Without stacks a hang is visible, but not its location.
How we know      py-spy was refused or is not there; the reason is read from /proc and from distdoctor's own capabilities.
What to do       Change the one setting that the finding names, or install the package. Jobs started with distdoctor run
                 record themselves: they are diagnosed without stacks, too, and this is a warning there.
When it is fine  Never reported for processes that could be read.
Source           man 2 ptrace, "Ptrace access mode checking"; https://docs.kernel.org/admin-guide/LSM/Yama.html
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.finding import CERTAIN, ERROR, WARNING, Finding, Prescription
from distdoctor.diagnosis.hang.live.stall import Stall, state_of
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Recording
from distdoctor.recording.stacks import ProcessStacks
from distdoctor.testing.stacks import in_collective, looked_at, rank


@check("DD608", "stacks-not-readable", severity=ERROR, stands_alone=True)
def examine(standstill: Stall) -> Iterator[Finding]:
    hidden = {number: p for number, p in standstill.stacks.processes() if p.trouble and p.is_python and not p.threads}
    hidden = {number: p for number, p in hidden.items() if p.state not in ("X", "Z")}
    if not hidden:
        return
    first = next(iter(hidden.values()))
    all_of_them = len(hidden) == sum(1 for _ in standstill.stacks.processes())
    only_stacks = all_of_them and not standstill.recording.ranks
    yield Finding(
        title=f"the stacks cannot be read: {first.trouble}",
        ranks=tuple(hidden),
        confidence=CERTAIN,
        severity=ERROR if only_stacks else WARNING,
        evidence={f"rank {number}": _visible(process) for number, process in hidden.items()},
        why="; ".join(f"{named([number])}: {_visible(process)}" for number, process in list(hidden.items())[:4]),
        prescriptions=(
            Prescription(
                "allow-ptrace", change=first.way_in or "run distdoctor hang-dump again; if that fails, run it as root"
            ),
        ),
    )


def _visible(process: ProcessStacks) -> str:
    """What shows without looking inside."""
    parts = [f"pid {process.pid} is {state_of(process)}", f"{process.cpu_share:.0%} of a core"]
    if process.still_seconds is not None:
        parts.append(f"last ran {process.still_seconds:.1f} s ago")
    if process.wchan:
        parts.append(f"in the kernel's {process.wchan}")
    if process.syscall >= 0:
        parts.append(f"system call {process.syscall}")
    return ", ".join(parts)


def sick() -> Recording:
    """Both ranks belong to somebody else."""
    way_in = "kernel.yama.ptrace_scope is 1: `sudo sysctl kernel.yama.ptrace_scope=0`"
    return looked_at(*(rank(number, trouble="the kernel refuses ptrace", way_in=way_in) for number in range(2)))


def healthy() -> Recording:
    """Both ranks can be read."""
    return looked_at(in_collective(0, still=0.1), in_collective(1, still=0.1))
