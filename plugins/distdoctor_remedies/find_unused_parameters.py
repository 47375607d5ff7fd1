"""Use every parameter in the loss on every rank, or tell DDP that some are left out."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

REMEDY = Remedy(
    slug="find-unused-parameters",
    what="Use every parameter in the loss on every rank, or tell DDP that some are left out.",
    how="DistributedDataParallel(model, find_unused_parameters=True)",
    effect="the reducer no longer waits for gradients that never come; costs one walk over the graph per step",
    safety="changes no result; slower by the walk",
    source="torch.nn.parallel.DistributedDataParallel, find_unused_parameters",
)
