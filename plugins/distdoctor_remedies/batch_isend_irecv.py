"""Post sends and receives together instead of one after the other."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

REMEDY = Remedy(
    slug="batch-isend-irecv",
    what="Post sends and receives together instead of one after the other.",
    how=(
        "ops = [dist.P2POp(dist.isend, x, right), dist.P2POp(dist.irecv, y, left)]\n"
        "for work in dist.batch_isend_irecv(ops):\n"
        "    work.wait()"
    ),
    effect="nobody has to be first",
    safety="changes no result; the tensors must stay untouched until wait() is back",
    source="torch.distributed.batch_isend_irecv",
)
