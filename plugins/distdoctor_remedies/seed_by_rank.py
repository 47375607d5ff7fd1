"""Draw apart where ranks read apart, and alike where they share a layer."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

SEED_BY_RANK = Remedy(
    slug="seed-by-rank",
    what="Seed with the rank after the model is made on replicas; alike within a tensor-parallel group.",
    how="""torch.manual_seed(seed)                  # the same first weights everywhere
model = DistributedDataParallel(Net())
torch.manual_seed(seed + rank)           # other dropout masks on every replica
# tensor parallel over a group: the number of the data share, not of the rank
torch.manual_seed(seed + data_rank)
# checkpoints: the default restores the random state before it recomputes
checkpoint(block, inputs, use_reentrant=False)""",
    effect="Replicas drop different units; ranks that share a layer drop the same ones.",
    safety="the training draws other random numbers than before, so losses are not comparable bit by bit",
    source="Megatron-LM, tensor_parallel/random.py; torch.utils.checkpoint",
)
