"""Take the barrier out of the step."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

REMEDY = Remedy(
    slug="drop-barriers",
    what="Take the barrier out of the step.",
    effect="the time in the barrier once everybody is there; a rank that is late once can catch up",
    safety="keep barriers that guard what collectives do not see: files, folders, processes outside",
    source="torch.distributed.barrier",
)
