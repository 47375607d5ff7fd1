"""Which start of the ranks this one is: the agent's word where it is ours, otherwise what the run folder shows.

No launcher numbers its starts alike on every host: TORCHELASTIC_RESTART_COUNT counts what the ranks of one host caused.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from distdoctor.probe.ancestry import ancestors
from distdoctor.probe.interruptions import hand_on
from distdoctor.probe.writer import TraceWriter, file_name
from distdoctor.recording.trace.layout import HEADER, MAGIC, Claim
from distdoctor.recording.trace.process_key import ProcessKey

ASKED_AGAIN = 8  # other ranks of the same start may number it at the same moment


@dataclass(frozen=True)
class RankNumbers:
    """Which rank of how many a process is, and which of its host."""

    rank: int
    world_size: int
    local_rank: int


def open_trace(
    folder: str, numbers: RankNumbers, streams: Iterable[str], given: int | None = None, *, joining: bool = False
) -> TraceWriter | None:
    """The trace of this process. None: another one records as this rank, and may be it.

    `given`: the number of this start, where the launcher told it. `joining`: this process is about to join the job, so that it is
    the rank for sure.
    """
    rank = numbers.rank
    replaces = False
    for _ in range(ASKED_AGAIN):
        attempt = _by_the_folder(folder, rank, numbers.world_size) if given is None else given
        try:
            return TraceWriter(
                folder, rank, numbers.world_size, numbers.local_rank, attempt, streams, replaces=replaces
            )
        except FileExistsError:
            replaces = _has_to_give_way(folder, rank, attempt, joining=joining, numbered=given is not None)
            if not replaces and (given is not None or _still_records(folder, rank, attempt)):
                return None
    return None


def _has_to_give_way(folder: str, rank: int, attempt: int, *, joining: bool, numbered: bool) -> bool:
    """Whether the process that began to record as this rank was none: a wrapper around it, a helper that it started.

    `numbered`: the launcher numbers its starts, so that a trace of this number is of this very start.
    """
    head = _header(os.path.join(folder, file_name(rank, attempt)))
    if not head or head["claim"] not in (Claim.NONE, Claim.LEFT):
        return False
    if not _writer(head).lives_here:
        return numbered or head["claim"] == Claim.LEFT
    # What stands below us is our helper. What stands above us may be the rank or a wrapper: who joins first shows it.
    return joining or head["pid"] == os.getpid() or os.getpid() in ancestors(head["pid"])


def _by_the_folder(folder: str, rank: int, world_size: int) -> int:
    """The newest start, when it is one of as many ranks and this one is not in it yet; otherwise the next."""
    sizes: dict[int, int] = {}
    mine: set[int] = set()
    for name in os.listdir(folder):
        parts = name.split(".")
        if len(parts) < 3 or parts[2] != "trace" or not parts[0].startswith("rank-") or not parts[1][1:].isdigit():
            continue
        attempt = int(parts[1][1:])
        if parts[0] == f"rank-{rank:05d}":
            mine.add(attempt)
        if attempt not in sizes:
            sizes[attempt] = int(_header(os.path.join(folder, name)).get("world_size", 0))
    newest = max(sizes, default=-1)
    if newest < 0:
        return 0
    if newest in mine:
        return newest if _holds_the_number(folder, rank, newest) else newest + 1
    return newest if sizes[newest] in (0, world_size) else newest + 1


def _holds_the_number(folder: str, rank: int, attempt: int) -> bool:
    """Whether that start is still on: its process is there, or was a helper that has gone."""
    head = _header(os.path.join(folder, file_name(rank, attempt)))
    return _still_records(folder, rank, attempt) or head["claim"] == Claim.LEFT


def _still_records(folder: str, rank: int, attempt: int) -> bool:
    """Whether the process that began to record as this rank is still there."""
    head = _header(os.path.join(folder, file_name(rank, attempt)))
    if not head:
        return True  # it has just begun
    return _writer(head).lives_here


def _writer(head: dict[str, Any]) -> ProcessKey:
    boot = head["boot"].hex() if any(head["boot"]) else ""
    host = head["host"].rstrip(b"\0").decode("utf-8", "replace")
    return ProcessKey(head["pid"], head["pid_started"], host, boot, head["pid_namespace"])


def _header(path: str) -> dict[str, Any]:
    """The header of a trace, {} where there is none yet."""
    try:
        with open(path, "rb") as file:
            fields = HEADER.packer.unpack(file.read(HEADER.size))
    except (OSError, struct.error) as error:
        hand_on(error)
        return {}
    return dict(zip(HEADER.offsets, fields, strict=True)) if fields[0].startswith(MAGIC[:7]) else {}
