"""Nothing shards the training set among the ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.utils.data import Sampler

from distdoctor.offers import Drill

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

MISSING_DISTRIBUTED_SAMPLER = Drill(
    slug="missing-distributed-sampler",
    code="DD304",
    summary="the training loader has shuffle=True and no DistributedSampler",
    expect="DD304: every rank draws the whole training set",
    plant="distdoctor_drills.data.missing_distributed_sampler:plant",
    strategies=("ddp", "fsdp", "amp"),
    arguments={"epochs": 1},
)


def plant(training: Training) -> None:
    """Leave the sampler to the loader."""
    usual = training.make_sampler

    def make_sampler(dataset: Any, *, shuffle: bool) -> Sampler[int] | None:
        return None if shuffle else usual(dataset, shuffle=shuffle)

    training.replace("make_sampler", make_sampler)
