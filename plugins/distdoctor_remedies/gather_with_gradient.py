"""Gather features so that the loss can reach them."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

GATHER_WITH_GRADIENT = Remedy(
    slug="gather-with-gradient",
    what="Gather with a collective that autograd knows, or put this rank's own features back.",
    how="""from torch.distributed.nn.functional import all_gather
everybody = torch.cat(all_gather(features))        # gradients flow back to every rank
# or: others' features as constants, one's own with gradient
gathered = [torch.empty_like(features) for _ in range(world_size)]
dist.all_gather(gathered, features)
gathered[rank] = features
everybody = torch.cat(gathered)""",
    effect="The gradient of the gathered features is no longer missing.",
    safety="backward reduces the features' gradients once: their bytes more; DistributedDataParallel divides by the ranks, "
    "which a loss over all ranks has to make up for",
    source="torch.distributed.nn.functional.all_gather",
)
