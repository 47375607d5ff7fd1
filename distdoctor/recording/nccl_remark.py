"""A line of NCCL's own diagnostics, 2.31 and newer: printed where NCCL_RUN_RAS_DIAGNOSTICS or NCCL_RUN_DIAGNOSTICS is set, or
answered to `ncclras -D`."""

from __future__ import annotations

import re
from dataclasses import dataclass

_BEGINS = (
    "NCCL DIAG ["  # looked for as it stands: a pattern with the host before it would try each letter of a long line
)
_LINE = re.compile(r"NCCL DIAG \[(OK|INFO)\]\s{1,4}([A-Za-z][\w ]{0,40}): (.{1,2000})")
_HOST = re.compile(r"(\S{1,200}):\d{1,9} $")
_RANKS = re.compile(r"rank\(s\) \{?((?:\d{1,7}, ?){0,1000}\d{1,7})")
_ONE_RANK = re.compile(r"\brank (\d{1,7})\b")
_PAIR = re.compile(r"srcRank=(\d{1,7}) .{0,200}?dstRank=(\d{1,7})")


@dataclass(frozen=True)
class NcclRemark:
    """What one check of NCCL's said of one communicator. `is_fine`: NCCL found nothing to remark on; `subject` is the check."""

    subject: str
    words: str
    is_fine: bool
    host: str = ""

    @property
    def ranks(self) -> tuple[int, ...]:
        """Of the communicator: those that it lists, else the pair of GPUs, else the first one that it names."""
        if listed := _RANKS.search(self.words):
            return tuple(int(number) for number in listed[1].split(","))
        if pair := _PAIR.search(self.words):
            return int(pair[1]), int(pair[2])
        one = _ONE_RANK.search(self.words)
        return (int(one[1]),) if one else ()


def remark_in(line: str) -> NcclRemark | None:
    """What a line of output says for NCCL's diagnostics, None where it is no result of theirs."""
    at = line.find(_BEGINS)
    found = _LINE.match(line, at) if at >= 0 else None
    if found is None:
        return None
    host = _HOST.search(line[max(0, at - 220) : at])
    return NcclRemark(found[2], found[3].strip(), found[1] == "OK", host[1] if host else "")
