"""Let every rank issue the same operation at the same place."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

REMEDY = Remedy(
    slug="same-operation",
    what="Issue the same operation on every rank of the group.",
    how="dist.broadcast(x, src=0)  # on every rank, also on those that only receive",
    effect="the ranks meet again at the same sequence number",
    safety="check which of the operations was meant: they give different results",
    source="torch.distributed: collectives have to be called by all members of the group, in the same order",
)
