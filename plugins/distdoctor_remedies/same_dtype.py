"""Convert to one dtype on every rank before the collective."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

REMEDY = Remedy(
    slug="same-dtype",
    what="Convert to one dtype on every rank before the collective.",
    how=("x = x.to(torch.float32)\ndist.all_reduce(x)"),
    effect="the members agree on what the bytes mean",
    safety="a narrower dtype rounds",
    source="torch.distributed",
)
