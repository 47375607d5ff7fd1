"""The sampler of the training set does not shuffle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.utils.data import Sampler

from distdoctor.offers import Drill

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

SAMPLER_AND_SHUFFLE = Drill(
    slug="sampler-and-shuffle",
    code="DD312",
    summary="the training data are read in order",
    expect="DD312: every epoch runs from the first sample to the last",
    plant="distdoctor_drills.data.sampler_and_shuffle:plant",
    strategies=("ddp", "amp"),
    arguments={"epochs": 2},
)


def plant(training: Training) -> None:
    """Give shuffle to nobody."""
    usual = training.make_sampler

    def make_sampler(dataset: Any, *, shuffle: bool) -> Sampler[int] | None:
        sampler = usual(dataset, shuffle=shuffle)
        if shuffle and sampler is not None:
            sampler.shuffle = False  # type: ignore[attr-defined]
        return sampler

    training.replace("make_sampler", make_sampler)
