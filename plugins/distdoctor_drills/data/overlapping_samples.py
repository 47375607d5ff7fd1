"""The ranks' samplers are seeded differently, so their shards overlap."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.utils.data import Sampler
from torch.utils.data.distributed import DistributedSampler

from distdoctor.offers import Drill

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

OVERLAPPING_SAMPLES = Drill(
    slug="overlapping-samples",
    code="DD303",
    summary="each rank's sampler uses the rank as its seed",
    expect="DD303: the ranks draw the same samples within an epoch, because their samplers' seeds differ",
    plant="distdoctor_drills.data.overlapping_samples:plant",
    strategies=("ddp", "fsdp", "amp"),
    arguments={"epochs": 1},
)


def plant(training: Training) -> None:
    """Seed the training set's sampler with the rank."""
    usual = training.make_sampler

    def make_sampler(dataset: Any, *, shuffle: bool) -> Sampler[int] | None:
        if not shuffle:
            return usual(dataset, shuffle=shuffle)
        return DistributedSampler(
            dataset,
            num_replicas=training.arrangement.data_ranks,
            rank=training.arrangement.data_rank,
            seed=training.rank,
            drop_last=True,
        )

    training.replace("make_sampler", make_sampler)
