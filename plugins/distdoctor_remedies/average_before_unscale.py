"""Average gradients before the scaler looks for overflows."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

AVERAGE_BEFORE_UNSCALE = Remedy(
    slug="average-before-unscale",
    what="Average the gradients over all ranks first, then let GradScaler unscale them and look for overflows.",
    how="""scaler.scale(loss).backward()      # DistributedDataParallel averages here
# by hand: all_reduce every gradient now
scaler.unscale_(optimizer)
scaler.step(optimizer)
scaler.update()""",
    effect="An infinity of one rank is seen by all, and all of them skip the step.",
    safety="changes which steps are skipped",
    source="torch.amp.GradScaler; torch.distributed.fsdp.sharded_grad_scaler for sharded gradients",
)
