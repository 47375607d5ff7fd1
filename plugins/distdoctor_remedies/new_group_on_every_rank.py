"""Call new_group (init_device_mesh) on every rank, for all groups, in one order."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

REMEDY = Remedy(
    slug="new-group-on-every-rank",
    what="Call new_group (init_device_mesh) on every rank, for all groups, in one order.",
    how="groups = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3])]  # also by ranks that are in none of them",
    effect="no rank waits in new_group",
    safety="changes no result",
    source="torch.distributed.new_group: all processes of the main group enter it, also those that will not be members",
)
