"""Pass the group that was meant to the collective."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

REMEDY = Remedy(
    slug="use-the-subgroup",
    what="Pass the group that was meant to the collective.",
    how="dist.all_reduce(x, group=tp_group)",
    effect="the default group is no longer waited for",
    safety="changes results where the wrong group went unnoticed",
    source="torch.distributed: group=None is the default group of all ranks",
)
