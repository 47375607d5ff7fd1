"""Keep the optimizer's state of each parameter on one rank only."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

REMEDY = Remedy(
    slug="shard-the-optimizer",
    what="Keep the optimizer's state of each parameter on one rank only.",
    how="""optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.AdamW, lr=1e-3)""",
    effect="Each of R ranks keeps an R-th of the state; the new parameters are sent once more per step.",
    safety="changes no result; consolidate_state_dict() before a checkpoint is written",
    source="torch.distributed.optim.ZeroRedundancyOptimizer",
)
