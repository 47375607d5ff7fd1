"""Issue the collectives of all groups in one order on every rank."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

REMEDY = Remedy(
    slug="same-order",
    what="Issue the collectives of all groups in one order on every rank.",
    how=("dist.all_reduce(a, group=tp)   # first tp, then dp, on every rank\ndist.all_reduce(b, group=dp)"),
    effect="no rank waits in one group for a rank that waits in another",
    safety="changes no result",
    source="torch.distributed, multiple process groups: calls on several groups have to follow one global order",
)
