"""Divide gradients by the number of ranks exactly once."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

DIVIDE_BY_RANKS_ONCE = Remedy(
    slug="divide-by-ranks-once",
    what="Divide the summed gradients by the number of ranks, once; after DistributedDataParallel not at all.",
    how="""dist.all_reduce(parameter.grad)                  # SUM
parameter.grad /= dist.get_world_size()
# NCCL averages by itself: dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)""",
    effect="The optimizer uses the mean over all ranks, whatever their number.",
    safety="changes the size of the gradients; a learning rate that was tuned to the old size has to be tuned again",
    source="torch.nn.parallel.DistributedDataParallel",
)
