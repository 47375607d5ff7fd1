"""What the kernel tells about a process to everybody who may see it, without ptrace: state, CPU time, when it last ran."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_PROCESSOR = 36  # of /proc/PID/stat, behind the name: field 39 (proc_pid_stat(5))


@dataclass(frozen=True)
class Facts:
    """One reading of /proc/PID. `ran_ns` is how long the main thread has run since its start; -1 where the kernel keeps no count.

    `still_seconds` is how long ago the main thread last ran when this was read, 0 for one that is ready to run and waits for a
    core; None where unknown.
    """

    state: str
    parent: int
    started: int
    cpu_seconds: float
    ran_ns: int = -1
    still_seconds: float | None = None
    bytes_moved: int = 0
    wchan: str = ""
    syscall: int = -1
    tracer: int = 0
    frozen: bool = False
    ready_ns: Mapping[int, int] = field(default_factory=dict)  # thread -> how long it has run or waited for a core


def facts_of(pid: int) -> Facts | None:
    """The process now, None when it has gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    state = fields[0].decode()
    status = _pairs(f"/proc/{pid}/status", ":")
    return Facts(
        state=state,
        parent=int(fields[1]),
        started=int(fields[19]),
        cpu_seconds=(int(fields[11]) + int(fields[12])) / _TICKS,
        ran_ns=_number(_read(f"/proc/{pid}/task/{pid}/schedstat").partition(" ")[0], -1),
        still_seconds=0.0 if state == "R" else _still_seconds(pid),
        bytes_moved=sum(_number(_pairs(f"/proc/{pid}/io", ":").get(name, ""), 0) for name in ("rchar", "wchar")),
        wchan=_read(f"/proc/{pid}/wchan").strip("0\n"),
        syscall=_number(_read(f"/proc/{pid}/syscall").partition(" ")[0], -1),
        tracer=_number(status.get("TracerPid", ""), 0),
        frozen=_is_frozen(pid),
        ready_ns=dict(_ready(pid)),
    )


def _ready(pid: int) -> Iterator[tuple[int, int]]:
    """What each thread has run and has stood in the queue for a core, as far as the kernel keeps count."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return
    for thread in threads:
        words = _read(f"/proc/{pid}/task/{thread}/schedstat").split()
        if len(words) > 1:
            yield int(thread), _number(words[0], 0) + _number(words[1], 0)


def _still_seconds(pid: int) -> float | None:
    """How long the main thread has not run, on the scheduler's clock: we are running, so we ran a moment ago.

    None where the kernel does not tell: it needs CONFIG_SCHED_DEBUG, which the distributions' kernels have.
    """
    last = _last_ran(f"/proc/{pid}/task/{pid}/sched")
    now = _clock_of(_core_of(pid)) if last is not None else None
    return None if last is None or now is None else max(0.0, now - last)


def _core_of(pid: int) -> int:
    """The core that the main thread ran on last, -1 where that is not told."""
    words = _read(f"/proc/{pid}/task/{pid}/stat").rpartition(")")[2].split()
    return _number(words[_PROCESSOR], -1) if len(words) > _PROCESSOR else -1


def _clock_of(core: int) -> float | None:
    """The scheduler's clock of a core, which this thread moves to for a moment where it may.

    Each core's goes without what interrupts and the hypervisor took from it (`rq_clock_task`), so that after some hours those
    of two cores are seconds apart.
    """
    try:
        allowed = os.sched_getaffinity(0)
        if core not in allowed or len(allowed) == 1:
            return _last_ran("/proc/thread-self/sched")
        os.sched_setaffinity(0, {core})
        try:
            return _last_ran("/proc/thread-self/sched")
        finally:
            os.sched_setaffinity(0, allowed)
    except OSError:
        return _last_ran("/proc/thread-self/sched")


def _last_ran(path: str) -> float | None:
    words = _pairs(path, ":").get("se.exec_start", "")
    try:
        return float(words) / 1000 if words else None
    except ValueError:
        return None


def _is_frozen(pid: int) -> bool:
    """Whether a freezer cgroup (version 1 or 2) holds the process."""
    for line in _read(f"/proc/{pid}/cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers == "freezer":
            found = _read(f"/sys/fs/cgroup/freezer{path}/freezer.state").strip() in ("FROZEN", "FREEZING")
        elif not controllers:
            found = "frozen 1" in _read(f"/sys/fs/cgroup{path}/cgroup.events")
        else:
            continue
        if found:
            return True
    return False


def _pairs(path: str, separator: str) -> dict[str, str]:
    parts = (line.partition(separator) for line in _read(path).splitlines())
    return {name.strip(): value.strip() for name, found, value in parts if found}


def _read(path: str) -> str:
    try:
        return Path(path).read_text("utf-8", "replace")
    except OSError:
        return ""


def _number(word: str, otherwise: int) -> int:
    try:
        return int(word)
    except ValueError:
        return otherwise
