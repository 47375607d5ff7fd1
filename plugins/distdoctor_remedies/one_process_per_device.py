"""Give every device a process of its own."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

REMEDY = Remedy(
    slug="one-process-per-device",
    what="Give every device a process of its own.",
    how="""dist.init_process_group("nccl")
torch.cuda.set_device(local_rank)
model = DistributedDataParallel(model.to(local_rank), device_ids=[local_rank])
# torchrun --nproc-per-node gpu train.py""",
    effect="measure it: distdoctor compare --strategies single,dp,ddp --nproc <devices>",
    safety="every process reads its own share of the data: DistributedSampler; save from rank 0 only",
    source="torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel",
)
