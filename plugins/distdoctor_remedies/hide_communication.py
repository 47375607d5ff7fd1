"""Send less for what is computed, or send it earlier."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

REMEDY = Remedy(
    slug="hide-communication",
    what="Send less for what is computed, or send it earlier.",
    how="""from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
model.register_comm_hook(None, default_hooks.bf16_compress_hook)  # half the bytes
# or: a larger batch; accumulation under no_sync(); bucket_cap_mb=5 where one bucket holds everything""",
    effect="half the bytes: up to half the exposed time; n micro-steps under no_sync: 1/n of it per sample",
    safety="16-bit gradients round; a larger batch is another training",
    source="torch.distributed.algorithms.ddp_comm_hooks; torch.nn.parallel.DistributedDataParallel",
)
