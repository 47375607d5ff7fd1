"""Reduce one flat tensor instead of many small ones."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

REMEDY = Remedy(
    slug="reduce-at-once",
    what="Reduce one flat tensor instead of many small ones.",
    how="""flat = torch.nn.utils.parameters_to_vector([p.grad for p in parameters])
dist.all_reduce(flat)
torch.nn.utils.vector_to_parameters(flat / world_size, [p.grad for p in parameters])""",
    effect="one round trip instead of n; the finding names the time of the n",
    safety="same sums; one copy of the gradients more",
    source="torch.nn.parallel.DistributedDataParallel does this in buckets, during backward",
)
