"""Let no rank leave before the others have done their last collective."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

REMEDY = Remedy(
    slug="stay-until-the-end",
    what="Let every rank do the same number of steps, and leave together.",
    how=(
        "steps = torch.tensor([len(loader)])\n"
        "dist.all_reduce(steps, op=dist.ReduceOp.MIN)\n"
        "for _, batch in zip(range(int(steps)), loader):\n    ..."
    ),
    effect="no rank waits for one that has left",
    safety="the longest rank drops its surplus steps",
    source="torch.distributed.destroy_process_group; torch.distributed.algorithms.join.Join",
)
