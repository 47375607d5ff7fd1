"""Let every rank use the same parameters in a step, or take part with zeros."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

SAME_BRANCH_EVERYWHERE = Remedy(
    slug="same-branch-everywhere",
    what="Choose the branch alike on every rank, or average zeros where a rank did not use a parameter.",
    how="""chosen = torch.tensor([int(wanted)])
dist.broadcast(chosen, src=0)                          # one decision for all ranks
# or, with gradients averaged by hand:
for parameter in model.parameters():
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    dist.all_reduce(parameter.grad)
# or let the wrapper do it:
model = DistributedDataParallel(model, find_unused_parameters=True)""",
    effect="Every gradient is averaged with those of the same parameter.",
    safety="zeros make the mean smaller where few ranks use a parameter, as DistributedDataParallel does; costs their bytes",
    source="torch.nn.parallel.DistributedDataParallel, find_unused_parameters",
)
