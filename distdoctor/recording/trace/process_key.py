"""Which process wrote a trace, so that no other is ever taken for it: a pid is a number of one PID namespace of one boot."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True)
class ProcessKey:
    """`boot` is the kernel's boot id as 32 hex digits, `pid_namespace` the inode of /proc/PID/ns/pid, `started` clock ticks since
    boot. Empty and 0 where the trace is older than these fields; then `host` stands for them."""

    pid: int = 0
    started: int = 0
    host: str = ""
    boot: str = ""
    pid_namespace: int = 0

    @property
    def machine(self) -> str:
        """What processes share that share a kernel and its clock; containers of one machine do."""
        return self.boot or self.host

    @property
    def is_of_this_machine(self) -> bool:
        """Whether its pid means to us what it meant to its writer."""
        if not self.boot:
            return self.host == os.uname().nodename[:63]
        return self.boot == boot_id() and self.pid_namespace in (0, pid_namespace())

    @property
    def lives_here(self) -> bool:
        """Whether this very process is among those that we see; a zombie is."""
        if not (self.pid and self.is_of_this_machine):
            return False
        started = started_at(self.pid)
        return bool(started) and self.started in (0, started)

    @property
    def runs_here(self) -> bool:
        """The same of one that can still do something: a zombie cannot."""
        return self.lives_here and _stat(self.pid)[:1] not in ([], [b"Z"], [b"X"])


@cache
def boot_id() -> str:
    """Of the running kernel; "" where it does not tell."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip().replace("-", "")
    except OSError:
        return ""


def pid_namespace() -> int:
    """Ours; 0 where it cannot be read."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def started_at(pid: int) -> int:
    """Start time of a process in clock ticks since boot (/proc/PID/stat field 22), 0 if it is gone."""
    try:
        return int(_stat(pid)[19])
    except (ValueError, IndexError):
        return 0


def _stat(pid: int) -> list[bytes]:
    """The fields of /proc/PID/stat from the state on, [] where the process is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return stat.read().rpartition(b")")[2].split()
    except OSError:
        return []
