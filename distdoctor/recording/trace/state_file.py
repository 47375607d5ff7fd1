"""How the state of a rank lies on disk, beside its trace: as it was when training began, and whenever it was saved.

One JSON document each. Digests stand for tensors, numbers for learning rates and loss scales; nothing can be restored from it.
Standard library only: this is imported inside the ranks.
"""

from __future__ import annotations

import re

START, SAVE, AGAIN = (
    "start",
    "save",
    "again",
)  # `again`: the rank goes on training, with an optimizer that was made after a save
KEPT_SAVES = 4  # of one rank; the oldest gives way
AGAIN_NUMBER = KEPT_SAVES + 1  # the newest only
MOST_TENSORS = 4096  # of each kind
LARGEST_BYTES = 8 << 20  # of one document
WEIGHTS, BUFFERS, MOMENTS, COPIES = "weights", "buffers", "moments", "copies"
BESIDE = "beside"  # copies that no module holds: of a save those in it, of a start whatever may be one
OWN = "own"  # tensors in objects of the user's own: of a save those in it, of a start all that can be reached
LR, SCALE, SCHEDULE = (
    "lr",
    "scale",
    "schedule",
)  # numbers, followed by ` 1`, ` 2`, ... in the order in which they were made
# Counters of the user's own schedules and averages, followed by ` Class.attribute`.
POSITION, UPDATES = "position", "updates"
_NAME = re.compile(r"rank-(\d{1,9})\.a(\d{1,9})\.state-(\d)\.json$", re.ASCII)


def file_name(rank: int, attempt: int, number: int) -> str:
    """`rank-00003.a0.state-0.json`: 0 is the start, saves follow in turn, then the newest start after them."""
    return f"rank-{rank:05d}.a{attempt}.state-{number}.json"


def parse_name(name: str) -> tuple[int, int, int] | None:
    """(rank, attempt, number); None for another file."""
    match = _NAME.match(name)
    return (int(match[1]), int(match[2]), int(match[3])) if match else None
