"""set_epoch is never called."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.utils.data import Sampler

from distdoctor.offers import Drill

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

MISSING_SET_EPOCH = Drill(
    slug="missing-set-epoch",
    code="DD301",
    summary="set_epoch is never called",
    expect="DD301: epoch 1 repeats the order of epoch 0 on all ranks",
    plant="distdoctor_drills.data.missing_set_epoch:plant",
    strategies=("ddp", "fsdp", "amp"),
    arguments={"epochs": 2},
)


def plant(training: Training) -> None:
    """Leave the call out."""

    def set_epoch(sampler: Sampler[int], epoch: int) -> None:
        return

    training.replace("set_epoch", set_epoch)
