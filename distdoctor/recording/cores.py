"""How many cores the processes of this host's container may use together. Standard library only: ranks ask, too."""

from __future__ import annotations

import contextlib
import math
import os
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")


def cores() -> float:
    """Affinity of this thread, and the quota of the cgroup where there is one."""
    return min(float(len(os.sched_getaffinity(0))), quota(CGROUPS))


def quota(root: Path = CGROUPS) -> float:
    """The cores that the cgroup grants, as a container sees its own; infinity without a limit."""
    with contextlib.suppress(OSError, ValueError):  # version 2
        most, period = (root / "cpu.max").read_text().split()
        return math.inf if most == "max" else int(most) / int(period)
    with contextlib.suppress(OSError, ValueError):  # version 1
        most_us = int((root / "cpu/cpu.cfs_quota_us").read_text())
        return most_us / int((root / "cpu/cpu.cfs_period_us").read_text()) if most_us > 0 else math.inf
    return math.inf
