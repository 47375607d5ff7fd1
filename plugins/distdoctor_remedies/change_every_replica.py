"""What changes weights outside the optimizer has to change them on every replica."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

CHANGE_EVERY_REPLICA = Remedy(
    slug="change-every-replica",
    what="Do on every rank what changes weights between steps (reload, clamp, EMA, re-initialise), or broadcast afterwards.",
    how="""with torch.no_grad():
    for tensor in (*model.parameters(), *model.buffers()):
        dist.broadcast(tensor, src=0)""",
    effect="All replicas hold the same bits again.",
    safety="the other ranks' weights are replaced by those of rank 0",
    source="torch.nn.parallel.DistributedDataParallel: parameters are never broadcast between processes",
)
