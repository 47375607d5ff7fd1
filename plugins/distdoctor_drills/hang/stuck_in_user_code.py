"""One rank waits for a lock that is never released."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from distdoctor.offers import Drill

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

STUCK_IN_USER_CODE = Drill(
    slug="stuck-in-user-code",
    code="DD116",
    summary="rank 1 waits for a lock in step 3",
    expect="DD116: rank 1 is stuck in a lock while the others wait for it",
    plant="distdoctor_drills.hang.stuck_in_user_code:plant",
    ranks=(1,),
    strategies=("ddp", "amp", "fsdp", "hybrid", "tensor", "pipeline"),
)


def plant(training: Training) -> None:
    """Rank 1 takes a lock twice."""

    def wait(training: Training) -> None:
        if training.rank == 1 and training.step == 3:
            lock = threading.Lock()
            lock.acquire()
            lock.acquire()

    training.on("after_step", wait)
