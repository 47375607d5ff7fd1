"""What the kernel says about memory: of this process, of its children, of the machine or container. No call here waits."""

from __future__ import annotations

import os
from typing import NamedTuple

from distdoctor.probe.interruptions import hand_on

PAGE = os.sysconf("SC_PAGE_SIZE")
_UNLIMITED = 1 << 60  # cgroup v1 writes a number near 2^63 for "no limit"


class HostMemory(NamedTuple):
    """Bytes: what can still be had, out of how much, and the same of /dev/shm."""

    available: int = 0
    limit: int = 0
    shm_free: int = 0
    shm_size: int = 0


class ResidentMemory:
    """The resident memory of this process, by a file that stays open: about 2 us a look.

    Since Linux 6.2 the kernel counts per CPU and may be behind by some pages.
    """

    def __init__(self) -> None:
        self._statm = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)

    def now(self) -> int:
        """Bytes."""
        return int(os.pread(self._statm, 128, 0).split()[1]) * PAGE

    def both(self) -> tuple[int, int]:
        """Bytes in all, and those that lie in files and shared memory."""
        words = os.pread(self._statm, 128, 0).split()
        return int(words[1]) * PAGE, int(words[2]) * PAGE


class PeakMemory:
    """The highest resident memory since the last look, by the kernel's own high-water mark. For deep looks: 30-60 us each."""

    def __init__(self) -> None:
        self._status = os.open("/proc/self/status", os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._clear = os.open("/proc/self/clear_refs", os.O_WRONLY | os.O_CLOEXEC)
        except OSError as error:
            hand_on(error)
            self._clear = -1

    def take(self) -> int:
        """Bytes since `take` was called last; 0 where the kernel does not let the mark be reset."""
        if self._clear < 0:
            return 0
        text = os.pread(self._status, 8192, 0)
        at = text.find(b"VmHWM:")
        peak = int(text[at + 6 : text.index(b"kB", at)]) * 1024 if at >= 0 else 0
        os.pwrite(self._clear, b"5", 0)  # Linux 4.0, Documentation/filesystems/proc.rst: resets VmHWM
        return peak


def host() -> HostMemory:
    """The memory of this machine, or of the container where that is the tighter limit."""
    total = available = 0
    try:
        with open("/proc/meminfo", "rb") as file:
            for line in file:
                if line.startswith(b"MemTotal:"):
                    total = int(line.split()[1]) * 1024
                elif line.startswith(b"MemAvailable:"):
                    available = int(line.split()[1]) * 1024
                    break
    except (OSError, ValueError, IndexError) as error:
        hand_on(error)
    limit, used = _container()
    if 0 < limit < (total or _UNLIMITED):
        total, available = limit, min(available or limit, max(0, limit - used))
    return HostMemory(available, total, *_shared_memory())


def _container() -> tuple[int, int]:
    """(limit, bytes in use that cannot be dropped) of the cgroup that a container sees as its root; (0, 0) without a limit."""
    for limit_at, used_at, stat_at in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.stat"),
        (
            "/sys/fs/cgroup/memory/memory.limit_in_bytes",
            "/sys/fs/cgroup/memory/memory.usage_in_bytes",
            "/sys/fs/cgroup/memory/memory.stat",
        ),
    ):
        try:
            limit, used = _number(limit_at), _number(used_at)
            if not 0 < limit < _UNLIMITED:
                continue
            with open(stat_at, encoding="ascii") as file:  # cached files count as used, and can be dropped
                cached = sum(int(line.split()[1]) for line in file if line.split()[0] in _DROPPABLE)
            return limit, max(0, used - cached)
        except (OSError, ValueError, IndexError) as error:
            hand_on(error)
            continue
    return 0, 0


_DROPPABLE = ("inactive_file", "active_file")


def _number(path: str) -> int:
    with open(path, encoding="ascii") as file:
        return int(file.read())  # ValueError for `max`


def _shared_memory() -> tuple[int, int]:
    try:
        found = os.statvfs("/dev/shm")  # noqa: S108 - where torch puts the batches of DataLoader workers
    except OSError as error:
        hand_on(error)
        return 0, 0
    return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize


def children() -> tuple[int, int]:
    """How many children of multiprocessing this process has (DataLoader workers), and their resident memory together."""
    import multiprocessing.process

    count = total = 0
    for child in list(getattr(multiprocessing.process, "_children", ())):
        try:
            with open(f"/proc/{child.pid}/statm", "rb") as statm:
                words = statm.read().split()
            total += (int(words[1]) - int(words[2])) * PAGE  # pages of files are shared with everybody
            count += 1
        except (OSError, ValueError, IndexError) as error:
            hand_on(error)
            continue
    return count, total
