"""Where ranks leave what they measured of their memory, and reading it again. No torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = "DISTDOCTOR_MEMORY"
"""The variable that names the folder."""


def write(folder: str, rank: int, peaks: list[int], seconds: list[float]) -> None:
    """Leave what this rank measured: peaks in bytes, of the setup and of each step, and seconds from step to step."""
    found = {"rank": rank, "peaks": peaks, "seconds": seconds}
    (Path(folder) / f"memory-{rank}.json").write_text(json.dumps(found), encoding="utf-8")


def read(folder: Path) -> dict[int, dict[str, Any]]:
    """What each rank wrote, by rank."""
    found = [json.loads(path.read_text("utf-8")) for path in folder.glob("memory-*.json")]
    return {one["rank"]: one for one in sorted(found, key=lambda one: int(one["rank"]))}


def typical_peak(one: dict[str, Any]) -> int:
    """The peak of the setup and of two steps, the second of which has everything that an ordinary step has.

    The profiler does not see what gloo's threads free (torch 2.15): the sum of its events rises by some buffers in every step
    with collectives, while what the process holds stays the same. So later steps are left out.
    """
    return int(max(one["peaks"][:3]))
