"""Let NCCL carry what lies on CUDA devices."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

REMEDY = Remedy(
    slug="nccl-for-devices",
    what="Let NCCL carry what lies on CUDA devices.",
    how='dist.init_process_group("cpu:gloo,cuda:nccl", device_id=torch.device("cuda", local_rank))',
    effect="no copy to the host and back; the device link instead of a socket",
    safety="one rank per device: NCCL refuses two",
    source="torch.distributed, which backend to use",
)
