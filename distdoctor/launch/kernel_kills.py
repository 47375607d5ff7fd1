"""What the kernel counts about processes that it kills for lack of memory: SIGKILL itself leaves no other trace.

A cgroup counts such kills of its own processes, by whatever limit (v2: `oom_kill` in memory.events, v1: in memory.oom_control);
where no cgroup can be read, the host's counter in /proc/vmstat is what is left. Documentation/admin-guide/cgroup-v2.rst and
cgroup-v1/memory.rst of Linux 6.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

CGROUPS, PROC = Path("/sys/fs/cgroup"), Path("/proc")
UNLIMITED = 1 << 60  # v1 writes a number near 2^63 for "no limit", v2 the word max
FULL = 0.95  # of its limit, at its highest: v1 does not count which limit ran out
JUST_NOW_SECONDS = 10.0  # a large process takes a while to die; a DataLoader looks after its workers every 5 s


@dataclass(frozen=True)
class Level:
    """One cgroup, of a process or above it."""

    folder: Path
    v2: bool

    def kills(self) -> int | None:
        """Processes of it that the kernel has killed for lack of memory."""
        return _counts(self.folder / ("memory.events" if self.v2 else "memory.oom_control")).get("oom_kill")

    def shortages(self) -> int:
        """How often its own limit ran out (v2), or was met (v1, where giving back caches may have helped)."""
        if self.v2:
            return _counts(self.folder / "memory.events").get("oom", 0)
        return _number(self.folder / "memory.failcnt")

    def limit(self) -> int:
        """Bytes; 0 without one."""
        found = _number(self.folder / ("memory.max" if self.v2 else "memory.limit_in_bytes"))
        return found if found < UNLIMITED else 0

    def left(self) -> float:
        """Share of its limit that is not in use, caches of files left out; 1.0 without a limit."""
        limit = self.limit()
        if not limit:
            return 1.0
        used = _number(self.folder / ("memory.current" if self.v2 else "memory.usage_in_bytes"))
        stat = _counts(self.folder / "memory.stat")
        cached = sum(stat.get(name if self.v2 else f"total_{name}", 0) for name in ("active_file", "inactive_file"))
        return max(0.0, 1 - max(0, used - cached) / limit)

    def was_full(self) -> bool:
        return self.v2 or _number(self.folder / "memory.max_usage_in_bytes") >= FULL * self.limit()


@dataclass(frozen=True)
class Counts:
    """One reading: kills, and the shortages of each level from the process's own cgroup upwards."""

    at: float
    kills: int | None
    shortages: tuple[int, ...]


@dataclass
class KernelKills:
    """The counters that concern the processes of one cgroup, read now and then."""

    levels: tuple[Level, ...]
    proc: Path = PROC
    readings: deque[Counts] = field(default_factory=lambda: deque(maxlen=32))

    @classmethod
    def of(cls, pid: int, cgroups: Path = CGROUPS, proc: Path = PROC) -> KernelKills:
        """Those of a process that runs, read for the first time."""
        found = cls(levels_of(pid, cgroups, proc), proc)
        found.look()
        return found

    @property
    def counter(self) -> str:
        """The file that counts kills."""
        if self.levels:
            return str(self.levels[0].folder / ("memory.events" if self.levels[0].v2 else "memory.oom_control"))
        return str(self.proc / "vmstat")

    def look(self, now: float | None = None) -> None:
        """Read them. Called about once a second; seconds are monotonic."""
        kills = self.levels[0].kills() if self.levels else _counts(self.proc / "vmstat").get("oom_kill")
        shortages = tuple(level.shortages() for level in self.levels)
        self.readings.append(Counts(time.monotonic() if now is None else now, kills, shortages))

    def left(self) -> float:
        """Share of memory that is left, of the tightest limit or of the host; 1.0 where nothing is known."""
        host = _counts(self.proc / "meminfo")
        total = host.get("MemTotal:", 0)
        return min(
            [level.left() for level in self.levels] + ([host.get("MemAvailable:", total) / total] if total else []),
            default=1.0,
        )

    def lately(self) -> tuple[int | None, int]:
        """(kills within the last seconds; None: not known, the limit of the cgroup that was short of memory; 0: none, or the
        host itself)."""
        newest = self.readings[-1]
        old = [one for one in self.readings if one.at <= newest.at - JUST_NOW_SECONDS]
        before = old[-1] if old else self.readings[0]
        if newest.kills is None or before.kills is None:
            return None, 0
        kills = newest.kills - before.kills
        for level, now, then in zip(self.levels, newest.shortages, before.shortages, strict=True):
            if kills > 0 and now > then and level.limit() and level.was_full():
                return kills, level.limit()
        return kills, 0


def levels_of(pid: int, cgroups: Path = CGROUPS, proc: Path = PROC) -> tuple[Level, ...]:
    """The cgroup that counts a process's memory, and those above it that have a limit; () where none can be read."""
    try:
        lines = (proc / str(pid) / "cgroup").read_text().splitlines()
    except OSError:
        return ()
    found: list[Level] = []
    for line in lines:
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if "memory" in controllers.split(","):
            return _upwards(cgroups / "memory", path, v2=False) or tuple(found)
        if number == "0" and not controllers:
            found = list(_upwards(cgroups, path, v2=True))
    return tuple(found)


def _upwards(mount: Path, path: str, *, v2: bool) -> tuple[Level, ...]:
    """The cgroup at `path` below `mount`, and those above it with a limit. A container sees its own as the mount."""
    own = mount / path.strip("/")
    if ".." in Path(path).parts or not own.is_dir():
        own = mount
    folders = [own]
    while folders[-1] != mount:
        folders.append(folders[-1].parent)
    own_level, *above = (Level(folder, v2) for folder in folders)
    if own_level.kills() is None:
        return ()
    return (own_level, *(level for level in above if level.limit()))


def _counts(path: Path) -> dict[str, int]:
    """The lines `word number` of a file; nothing where it cannot be read."""
    try:
        words = path.read_text().split()
    except (OSError, UnicodeDecodeError):
        return {}
    return {word: int(number) for word, number in pairwise(words) if not word.isdigit() and number.isdigit()}


def _number(path: Path) -> int:
    """The number in a file; 0 where there is none, 2^63 for `max`."""
    try:
        word = path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return 0
    return 1 << 63 if word == "max" else int(word) if word.isdigit() else 0
