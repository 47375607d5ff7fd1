"""Start every replica from the same weights."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

SAME_INITIAL_WEIGHTS = Remedy(
    slug="same-initial-weights",
    what="Seed every rank alike before the model is built, or broadcast parameters and buffers from rank 0 once.",
    how="""torch.manual_seed(seed)            # the same on every rank, before the model is built
model = build_model()
for tensor in (*model.parameters(), *model.buffers()):
    dist.broadcast(tensor.data, src=0)  # where a checkpoint or a cache may differ""",
    effect="All replicas hold the same bits before the first step.",
    safety="ranks other than 0 start from other weights than before",
    source="torch.nn.parallel.DistributedDataParallel broadcasts once at construction (init_sync)",
)
