"""Bring buffers together before they matter."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

BROADCAST_BUFFERS = Remedy(
    slug="broadcast-buffers",
    what="Let the wrapper broadcast buffers (its default), convert to SyncBatchNorm, or broadcast them before evaluating.",
    how="""model = nn.SyncBatchNorm.convert_sync_batchnorm(model)   # statistics of the whole batch, GPU only
model = DistributedDataParallel(model)                   # broadcasts rank 0's buffers before each forward
# or, before evaluation and checkpoints:
for buffer in model.buffers():
    dist.broadcast(buffer, src=0)""",
    effect="Evaluation and checkpoints do not depend on the rank.",
    safety="a broadcast of all buffers in each forward costs some bytes; SyncBatchNorm communicates in every layer",
    source="torch.nn.parallel.DistributedDataParallel, broadcast_buffers",
)
