"""Make the ranks' samplers agree, so that their shares are disjoint."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

SAME_SEED_AND_EPOCH = Remedy(
    slug="same-seed-and-epoch",
    what="Give the samplers of all ranks the same seed, epoch, length and shuffle, and each its own rank.",
    how="sampler = DistributedSampler(dataset, num_replicas=world_size, rank=rank, seed=0)  # seed: equal on all ranks",
    effect="The shares of an epoch are disjoint and cover the data set.",
    safety="changes the order of the samples, and with it the losses",
    source="torch.utils.data.distributed.DistributedSampler: `seed` should be identical across all processes",
)
