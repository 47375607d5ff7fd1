"""Average every gradient over all replicas, once, after backward and before the step."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

ALL_REDUCE_GRADIENTS = Remedy(
    slug="all-reduce-gradients",
    what="Average every gradient over the replicas before the step, and change gradients afterwards on all ranks alike.",
    how="""model = DistributedDataParallel(model)     # averages while backward computes
# or, by hand, every parameter on every rank:
for parameter in model.parameters():
    if parameter.grad is not None:
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()
optimizer.step()""",
    effect="All replicas take the same step; gradients agree bit for bit.",
    safety="changes the training from the first step on: it becomes the one that was meant",
    source="torch.nn.parallel.DistributedDataParallel",
)
