"""Where ranks leave what they measured of their memory, and reading it again. No torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write(
    folder: str, rank: int, peaks: list[int], seconds: list[float], traffic: Mapping[str, int] | None = None
) -> None:
    """Leave what this rank measured: peaks in bytes, of the setup and of each step, seconds from step to step, and the bytes
    that the last step gave to collectives."""
    found = {"rank": rank, "peaks": peaks, "seconds": seconds, "traffic": dict(traffic or {})}
    (Path(folder) / f"memory-{rank}.json").write_text(json.dumps(found), encoding="utf-8")


def read(folder: Path) -> dict[int, dict[str, Any]]:
    """What each rank wrote, by rank."""
    found = [json.loads(path.read_text("utf-8")) for path in folder.glob("memory-*.json")]
    return {one["rank"]: one for one in sorted(found, key=lambda one: int(one["rank"]))}


def typical_peak(one: dict[str, Any]) -> int:
    """The peak of the setup, of the first step, and of the steps that have everything an ordinary step has.

    Of these the lowest: all of them do the same, and gloo's threads free a buffer now and then later than usual, which only adds
    (on 2 busy cores in every second step of a sharded training, 60 KiB of 1.1 MiB).
    """
    return int(max(*one["peaks"][:2], min(one["peaks"][2:] or [0])))
