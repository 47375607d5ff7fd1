"""How the set of samples that one long pass drew lies on disk, beside the trace: one bit for each sample of the data set.

    bytes 0-63   magic, number of the pass's record in the trace, samples of the data set, draws that the bits stand for
    from 64      the bits, the lowest of each byte first, filled up with zeros to whole 8 bytes

Only long passes have such a file: of shorter ones the trace holds every draw. The latest draws of a pass are not in the bits yet,
they are those of the trace's RAW block at work. Standard library only: this is imported inside the ranks.
"""

from __future__ import annotations

import re
import struct

MAGIC = b"DDDRAWN1"
HEAD = struct.Struct("<8sQQQ")
COVERED = struct.Struct("<Q")
COVERED_AT = 24
HEAD_BYTES = 64
_NAME = re.compile(r"rank-(\d+)\.a(\d+)\.pass-(\d+)\.drawn$")


def file_name(rank: int, attempt: int, pass_seq: int) -> str:
    """`rank-00003.a0.pass-12.drawn`."""
    return f"rank-{rank:05d}.a{attempt}.pass-{pass_seq}.drawn"


def parse_name(name: str) -> tuple[int, int, int] | None:
    """(rank, attempt, number of the pass's record); None for another file."""
    match = _NAME.match(name)
    return (int(match[1]), int(match[2]), int(match[3])) if match else None


def bit_bytes(length: int) -> int:
    """How many bytes the bits of so many samples take."""
    return -(-length // 64) * 8
