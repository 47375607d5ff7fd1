"""Shuffle where the order is made: in the sampler."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

SHUFFLE_IN_THE_SAMPLER = Remedy(
    slug="shuffle-in-the-sampler",
    what="Let the sampler shuffle, tell it the epoch, and give the loader no shuffle of its own.",
    how="""sampler = DistributedSampler(dataset, shuffle=True)
loader = DataLoader(dataset, batch_size=32, sampler=sampler)   # no shuffle= beside sampler=
for epoch in range(epochs):
    sampler.set_epoch(epoch)""",
    effect="Every epoch has an order of its own, the same one on all ranks, each rank its share of it.",
    safety="changes the order of the samples, and with it the losses",
    source="torch.utils.data.DataLoader; torch.utils.data.distributed.DistributedSampler",
)
