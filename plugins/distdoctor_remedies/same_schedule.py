"""Decide learning rates and schedules from values that all ranks share."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

SAME_SCHEDULE = Remedy(
    slug="same-schedule",
    what="Give every rank's scheduler the same number: reduce the metric over all ranks before it is asked.",
    how="""metric = torch.tensor([val_loss], device=device)
dist.all_reduce(metric, op=dist.ReduceOp.AVG)      # gloo: SUM, then divide
scheduler.step(metric.item())""",
    effect="All replicas step with the same learning rate.",
    safety="one small all_reduce for each decision",
    source="torch.optim.lr_scheduler.ReduceLROnPlateau",
)
