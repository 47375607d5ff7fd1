"""Let every rank normalise with the statistics of the whole batch."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

NORMALISE_THE_WHOLE_BATCH = Remedy(
    slug="normalise-the-whole-batch",
    what="Nothing is broken: use SyncBatchNorm (or GroupNorm, LayerNorm) where the strategy has to equal one process.",
    how="""model = nn.SyncBatchNorm.convert_sync_batchnorm(model)   # before wrapping; on GPUs
model = DistributedDataParallel(model, device_ids=[local_rank])""",
    effect="Mean and variance are those of the whole batch on every number of ranks, and the gradients with them.",
    safety="two small collectives more for each such layer; results change, as with batches of another size",
    source="torch.nn.SyncBatchNorm",
)
