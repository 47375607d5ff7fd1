"""Remedies for numerics and AMP."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

REMEDIES = (
    Remedy(
        slug="average-before-unscale",
        what="Average the gradients over all ranks before scaler.unscale_(optimizer), so that every rank "
        "sees the same overflows.",
        how="""scaler.scale(loss).backward()      # DistributedDataParallel averages here
# by hand: all_reduce every gradient now
scaler.unscale_(optimizer)
scaler.step(optimizer)
scaler.update()""",
        effect="All ranks see one rank's infinity, and all of them skip the step.",
        safety="changes which steps are skipped",
        source="torch.amp.GradScaler; torch.distributed.fsdp.sharded_grad_scaler for sharded gradients",
    ),
    Remedy(
        slug="find-the-first-nan",
        what="Inspect that rank's batch of that step, then the named layer (torch.autograd.detect_anomaly); "
        "`distdoctor check-grads` names the layer.",
        how="""distdoctor check-grads --nproc 2 train.py
# then, for the one operation in that layer:
with torch.autograd.detect_anomaly():
    loss = criterion(model(inputs), targets)
    loss.backward()""",
        effect="Shows rank, step, layer and direction of the first non-finite value.",
        safety="detect_anomaly costs 20-160 % of a step",
        source="torch.autograd.detect_anomaly",
    ),
    Remedy(
        slug="reduce-in-full-precision",
        what="Reduce gradients in 32 bits unless the measured error is far below the noise of a batch.",
        how="""model = DistributedDataParallel(model)                     # without a compressing hook
MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)   # fully_shard""",
        effect="Gradients are exact to 32 bits.",
        safety="twice the traffic of 16 bits",
        source="torch.distributed.algorithms.ddp_comm_hooks.default_hooks",
    ),
    Remedy(
        slug="unscale-first",
        what="Call scaler.unscale_(optimizer) before clip_grad_norm_.",
        how="""scaler.scale(loss).backward()
scaler.unscale_(optimizer)
torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
scaler.step(optimizer)             # does not unscale again
scaler.update()""",
        effect="The limit applies to the real gradients.",
        safety="steps become as large as the limit intends",
        source="PyTorch, Automatic Mixed Precision examples",
    ),
    Remedy(
        slug="use-the-successor",
        what="Use the successor that torch names (torch.amp.GradScaler, torchrun, fully_shard, ...).",
        how="""torch.amp.GradScaler("cuda")            # was torch.cuda.amp.GradScaler()
torch.amp.autocast("cuda")              # was torch.cuda.amp.autocast()
torchrun --nproc-per-node 8 train.py    # was python -m torch.distributed.launch
fully_shard(model)                      # was FullyShardedDataParallel(model)""",
        effect="The job keeps running on the next version of torch.",
        safety="the first three change no result; fully_shard saves checkpoints in a different layout",
        source="PyTorch, FSDP1 to FSDP2 migration guide; torchrun, transitioning from torch.distributed.launch",
    ),
)
