"""Look at the network and the devices: every rank has done its part."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

REMEDY = Remedy(
    slug="gather-backend-evidence",
    what="Look at the network and the devices: every rank has done its part.",
    how=(
        "TORCH_NCCL_TRACE_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1 NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET\n"
        "nvidia-smi --query-gpu=ecc.errors.uncorrected.volatile.total,clocks_throttle_reasons.active --format=csv"
    ),
    effect="names the host, link or device that does not answer",
    safety="writes logs only",
    source="PyTorch flight recorder; NCCL environment variables",
)
