"""Let the sampler ask the process group."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

SAMPLER_OF_THIS_WORLD = Remedy(
    slug="sampler-of-this-world",
    what="Leave num_replicas and rank out, or pass the world size and global rank of the ranks that average their gradients.",
    how="""sampler = DistributedSampler(dataset)
# beside tensor parallel: DistributedSampler(dataset, num_replicas=dp_mesh.size(), rank=dp_mesh.get_local_rank())""",
    effect="Every share is drawn by exactly one rank.",
    safety="the steps per epoch may change",
    source="torch.utils.data.distributed.DistributedSampler.__init__",
)
