"""Give each rank its share of the data set."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

DISTRIBUTED_SAMPLER = Remedy(
    slug="distributed-sampler",
    what="Give the loader a DistributedSampler instead of shuffle=True, and call its set_epoch in every epoch.",
    how="""sampler = DistributedSampler(dataset)  # shuffles; shuffle=False for evaluation
loader = DataLoader(dataset, batch_size=batch_size, sampler=sampler)
for epoch in range(epochs):
    sampler.set_epoch(epoch)""",
    effect="With W ranks each draws 1/W of the data set per epoch; an epoch takes 1/W of the steps.",
    safety="the steps per epoch change, and with them schedules that count steps",
    source="torch.utils.data.distributed.DistributedSampler",
)
