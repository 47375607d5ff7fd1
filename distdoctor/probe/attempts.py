"""Which start of the ranks this one is: the agent's word where it is ours, otherwise what the run folder shows.

No launcher numbers its starts alike on every host: TORCHELASTIC_RESTART_COUNT counts what the ranks of one host caused.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from typing import Any

from distdoctor.probe.writer import TraceWriter, file_name
from distdoctor.recording.trace.layout import HEADER, MAGIC
from distdoctor.recording.trace.process_key import ProcessKey

ASKED_AGAIN = 8  # other ranks of the same start may number it at the same moment


def open_trace(folder: str, rank: int, world_size: int, local_rank: int, streams: Iterable[str]) -> TraceWriter | None:
    """The trace of this process. None: it is a helper of the rank, which records already."""
    given = os.environ.get("DISTDOCTOR_ATTEMPT", "")
    for _ in range(1 if given.isdigit() else ASKED_AGAIN):
        attempt = int(given) if given.isdigit() else _by_the_folder(folder, rank, world_size)
        try:
            return TraceWriter(folder, rank, world_size, local_rank, attempt, streams)
        except FileExistsError:
            if _still_records(folder, rank, attempt):
                return None
    return None


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
        return newest if _still_records(folder, rank, newest) else newest + 1
    return newest if sizes[newest] in (0, world_size) else newest + 1


def _still_records(folder: str, rank: int, attempt: int) -> bool:
    """Whether the process that began to record as this rank is still there."""
    head = _header(os.path.join(folder, file_name(rank, attempt)))
    if not head:
        return True  # it has just begun
    boot = head["boot"].hex() if any(head["boot"]) else ""
    host = head["host"].rstrip(b"\0").decode("utf-8", "replace")
    return ProcessKey(head["pid"], head["pid_started"], host, boot, head["pid_namespace"]).lives_here


def _header(path: str) -> dict[str, Any]:
    """The header of a trace, {} where there is none yet."""
    try:
        with open(path, "rb") as file:
            fields = HEADER.packer.unpack(file.read(HEADER.size))
    except (OSError, struct.error):
        return {}
    return dict(zip(HEADER.offsets, fields, strict=True)) if fields[0].startswith(MAGIC[:7]) else {}
