"""set_epoch is given the number of epochs instead of the epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.utils.data import Sampler

from distdoctor.offers import Drill

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

CONSTANT_SET_EPOCH = Drill(
    slug="constant-set-epoch",
    code="DD302",
    summary="set_epoch is given the number of epochs",
    expect="DD302: set_epoch(epochs) is always 2, so epoch 1 repeats the order of epoch 0",
    plant="distdoctor_drills.data.constant_set_epoch:plant",
    strategies=("ddp", "fsdp", "amp"),
    arguments={"epochs": 2},
)


def plant(training: Training) -> None:
    """Mix up two variables whose names differ by a letter."""
    epochs = training.request.epochs

    def set_epoch(sampler: Sampler[int], epoch: int) -> None:
        sampler.set_epoch(epochs)  # type: ignore[attr-defined]

    training.replace("set_epoch", set_epoch)
