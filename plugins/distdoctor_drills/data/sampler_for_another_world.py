"""The samplers shard the data for twice as many ranks as there are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.utils.data import Sampler
from torch.utils.data.distributed import DistributedSampler

from distdoctor.offers import Drill

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

SAMPLER_FOR_ANOTHER_WORLD = Drill(
    slug="sampler-for-another-world",
    code="DD311",
    summary="num_replicas is twice the number of ranks",
    expect="DD311: of 4 shards, no rank draws shards 2-3",
    plant="distdoctor_drills.data.sampler_for_another_world:plant",
    strategies=("ddp", "amp"),
    arguments={"epochs": 1, "steps": 16},
)


def plant(training: Training) -> None:
    """Give num_replicas a number that was right on another machine."""
    usual = training.make_sampler

    def make_sampler(dataset: Any, *, shuffle: bool) -> Sampler[int] | None:
        if not shuffle:
            return usual(dataset, shuffle=shuffle)
        shares = 2 * training.arrangement.data_ranks
        return DistributedSampler(dataset, num_replicas=shares, rank=training.arrangement.data_rank, drop_last=True)

    training.replace("make_sampler", make_sampler)
