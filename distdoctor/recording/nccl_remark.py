"""A line of NCCL's own diagnostics, 2.31 and newer: printed where NCCL_RUN_RAS_DIAGNOSTICS or NCCL_RUN_DIAGNOSTICS is set, or
answered to `ncclras -D`."""

from __future__ import annotations

import re
from dataclasses import dataclass

_LINE = re.compile(r"(?:(\S{1,200}):\d{1,9} )?NCCL DIAG \[(OK|INFO)\]\s{1,4}([A-Za-z][\w ]{0,40}): (.{1,2000})")
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
    found = _LINE.search(line)
    return NcclRemark(found[3], found[4].strip(), found[2] == "OK", found[1] or "") if found else None
