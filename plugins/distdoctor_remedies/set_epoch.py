"""Tell the sampler which epoch it is."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

SET_EPOCH = Remedy(
    slug="set-epoch",
    what="Call set_epoch(epoch) on the sampler at the top of the epoch loop, before the loader is iterated.",
    how="""for epoch in range(epochs):
    sampler.set_epoch(epoch)
    for batch in loader:
        ...""",
    effect="Each epoch has an order of its own, the same on all ranks, so that their shares stay disjoint.",
    safety="changes the order of the samples from the second epoch on, and with it the losses",
    source="torch.utils.data.distributed.DistributedSampler, warning on set_epoch",
)
