"""Keep the shards of parameters, gradients and optimizer state in host memory."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

REMEDY = Remedy(
    slug="offload-to-host",
    what="Keep the shards of parameters, gradients and optimizer state in host memory.",
    how="""fully_shard(block, offload_policy=CPUOffloadPolicy())""",
    effect="The device keeps activations and one gathered block; each step moves the shards over the host's link.",
    safety="changes no result; the optimizer steps on the CPU, which is slower",
    source="torch.distributed.fsdp.CPUOffloadPolicy",
)
