"""Clip by one norm for all ranks, after averaging."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

CLIP_THE_WHOLE_GRADIENT = Remedy(
    slug="clip-the-whole-gradient",
    what="Clip after the gradients are averaged, and over shards by the norm of all of them.",
    how="""for parameter in model.parameters():
    dist.all_reduce(parameter.grad)
    parameter.grad /= dist.get_world_size()
torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)   # now it is the same everywhere
# shards: FSDP1 has a method of its own, DTensor parameters (fully_shard) need nothing special
model.clip_grad_norm_(1.0)
# shards by hand:
square = sum(p.grad.square().sum() for p in shards)
dist.all_reduce(square)""",
    effect="All ranks multiply by the same factor: the step keeps its direction.",
    safety="the norm of the mean is smaller than the mean of the norms, so a limit tuned on local norms bites less",
    source="torch.nn.utils.clip_grad_norm_",
)
