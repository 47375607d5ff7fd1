"""Replace what torch has deprecated by what it offers instead."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

USE_THE_SUCCESSOR = Remedy(
    slug="use-the-successor",
    what="Use the successor that torch names.",
    how="""torch.amp.GradScaler("cuda")            # was torch.cuda.amp.GradScaler()
torch.amp.autocast("cuda")              # was torch.cuda.amp.autocast()
torchrun --nproc-per-node 8 train.py    # was python -m torch.distributed.launch
fully_shard(model)                      # was FullyShardedDataParallel(model)""",
    effect="The job starts under the next version of torch.",
    safety="the first three change no result; fully_shard saves its checkpoints in another layout",
    source="PyTorch, FSDP1 to FSDP2 migration guide; torchrun, transitioning from torch.distributed.launch",
)
