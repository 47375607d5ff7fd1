"""Leave find_unused_parameters out."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

REMEDY = Remedy(
    slug="stop-searching",
    what="Leave find_unused_parameters out.",
    how="model = DistributedDataParallel(model)",
    effect="saves the walk over the graph after each forward, whose time the finding names, and one small collective",
    safety="DDP raises in the next forward if a step does leave a parameter out; it does not train wrongly",
    source="torch.nn.parallel.DistributedDataParallel, find_unused_parameters",
)
