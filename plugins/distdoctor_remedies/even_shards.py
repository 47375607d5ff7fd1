"""Give all ranks equally many batches."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

EVEN_SHARDS = Remedy(
    slug="even-shards",
    what="Let DistributedSampler divide the data, drop the surplus of the larger shards, or wrap the loop in join.",
    how="with model.join():\n    for batch in loader:\n        ...",
    effect="All ranks make the same number of steps, or those that are done stand in for the missing ones.",
    safety="join divides by the ranks that are left in the last steps; dropping leaves some samples out of an epoch",
    source="torch.nn.parallel.DistributedDataParallel.join",
)
