"""Divide what one rank holds for all."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

DIVIDE_THE_MEMORY = Remedy(
    slug="divide-the-memory",
    what="Divide what one rank holds: shard optimizer state, cut stages by bytes, load onto the rank's own device.",
    how="""optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.AdamW, lr=1e-3)
state = torch.load(path, map_location="cpu")""",
    effect="Each of R ranks holds an R-th of what was on one.",
    safety="changes no result; sharded state is gathered when a checkpoint is written",
    source="torch.distributed.optim.ZeroRedundancyOptimizer; torch.distributed.fsdp.fully_shard; torch.load",
)
