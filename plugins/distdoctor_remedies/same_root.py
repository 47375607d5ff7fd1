"""Pass the same src or dst on every rank of the group."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

REMEDY = Remedy(
    slug="same-root",
    what="Pass the same src or dst on every rank of the group.",
    how="dist.broadcast(x, src=0)  # a global rank, the same everywhere",
    effect="the root sends what the others wait for",
    safety="changes no result",
    source="torch.distributed.broadcast: src is a global rank, group_src one inside the group",
)
