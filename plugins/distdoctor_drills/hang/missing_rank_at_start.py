"""One rank never reaches init_process_group."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from distdoctor.offers import Drill

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

MISSING_RANK_AT_START = Drill(
    slug="missing-rank-at-start",
    code="DD118",
    summary="rank 1 is stuck before init_process_group",
    expect="DD118: rank 1 never reached init_process_group, where rank 0 waits",
    plant="distdoctor_drills.hang.missing_rank_at_start:plant",
    ranks=(1,),
)


def plant(training: Training) -> None:
    """Rank 1 waits for what nobody sends: a download, a lock of another process."""
    if training.rank == 1:
        threading.Event().wait()
