"""The members of a subgroup forget to pass it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from distdoctor.offers import Drill

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

MEMBERS = (0, 1)
WRONG_GROUP = Drill(
    slug="wrong-group",
    code="DD124",
    summary="ranks 0 and 1, which have a group of their own, reduce on the default group in step 3",
    expect="DD124: ranks 0,1 issued all_reduce on the default group, most likely meant for their own",
    plant="distdoctor_drills.hang.wrong_group:plant",
    ranks=MEMBERS,
    strategies=("ddp", "amp"),
    needs_ranks=3,
    arguments={"batch_size": 30},
)


def plant(training: Training) -> None:
    """Two ranks add up something of theirs after each step."""
    made: list[Any] = []

    def add_up(training: Training) -> None:
        if training.step == 0:
            made.append(dist.new_group(list(MEMBERS)))
        if training.rank in MEMBERS:
            seen = torch.tensor(float(training.samples_seen))
            if training.step == 3:
                dist.all_reduce(seen)
            else:
                dist.all_reduce(seen, group=made[0])

    training.on("after_step", add_up)
