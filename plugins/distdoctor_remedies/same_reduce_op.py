"""Use one reduction on every rank."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

REMEDY = Remedy(
    slug="same-reduce-op",
    what="Use one reduction on every rank.",
    how=("dist.all_reduce(x, op=dist.ReduceOp.SUM)\nx /= dist.get_world_size()"),
    effect="all ranks hold the same, right result",
    safety="changes the results that were wrong; AVG exists on NCCL only",
    source="torch.distributed.ReduceOp",
)
