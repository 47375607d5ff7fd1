"""Remedies for speed and cost."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

REMEDIES = (
    Remedy(
        slug="drop-barriers",
        what="Take the barrier out of the step.",
        effect="the time in the barrier once everybody is there; a rank that is late once can catch up",
        safety="keep barriers that guard what collectives do not see: files, folders, processes outside",
        source="torch.distributed.barrier",
    ),
    Remedy(
        slug="fill-the-pipeline",
        what="Cut batches into more micro-batches, and the model into even stages.",
        how="""schedule = Schedule1F1B(stage, n_microbatches=4 * stages, loss_fn=loss_fn)
# uneven: move layers from the stage that computes longest to its neighbours""",
        effect="the bubble is (p - 1) / (m + p - 1) of a step: p stages, m micro-batches",
        safety="same gradients; 1F1B keeps the activations of p micro-batches, GPipe those of m",
        source="torch.distributed.pipelining; Huang et al., GPipe, 2019",
    ),
    Remedy(
        slug="hide-communication",
        what="Send less for what is computed, or send it earlier.",
        how="""from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
model.register_comm_hook(None, default_hooks.bf16_compress_hook)  # half the bytes
# or: a larger batch; accumulation under no_sync(); bucket_cap_mb=5 where one bucket holds everything""",
        effect="half the bytes: up to half the exposed time; n micro-steps under no_sync: 1/n of it per sample",
        safety="16-bit gradients round; a larger batch is another training",
        source="torch.distributed.algorithms.ddp_comm_hooks; torch.nn.parallel.DistributedDataParallel",
    ),
    Remedy(
        slug="load-ahead",
        what="Let worker processes make the batches before they are asked for.",
        how="DataLoader(dataset, ..., num_workers=4, persistent_workers=True, prefetch_factor=4, pin_memory=True)",
        effect="at most the time that the finding names, once workers make batches faster than the model takes them",
        safety="randomness inside the data set then comes from the workers' seeds; workers take memory and cores",
        source="torch.utils.data.DataLoader",
    ),
    Remedy(
        slug="mixed-precision",
        what="Compute forward and loss under autocast in 16 bits.",
        how="""with torch.autocast("cuda", torch.bfloat16):
    loss = criterion(model(inputs), targets)""",
        effect="What matrix products keep for backward halves; parameters and optimizer state stay in fp32.",
        safety="rounds to 8 bits of mantissa (bf16); fp16 needs a GradScaler",
        source="torch.amp",
    ),
    Remedy(
        slug="nccl-for-devices",
        what="Let NCCL carry what lies on CUDA devices.",
        how='dist.init_process_group("cpu:gloo,cuda:nccl", device_id=torch.device("cuda", local_rank))',
        effect="no copy to the host and back; the device link instead of a socket",
        safety="one rank per device: NCCL refuses two",
        source="torch.distributed, which backend to use",
    ),
    Remedy(
        slug="no-sync",
        what="Average gradients once per optimizer step, in the last micro-step.",
        how="""is_last = (i + 1) % accumulate == 0
with nullcontext() if is_last else model.no_sync():
    loss = criterion(model(inputs), targets) / accumulate
    loss.backward()
if is_last:
    optimizer.step()
    optimizer.zero_grad()""",
        effect="(n - 1) / n of the bytes of a step; of the time, what a pass waits for its buckets",
        safety="same gradients up to rounding; keep the forward inside the context as well",
        source="torch.nn.parallel.DistributedDataParallel.no_sync",
    ),
    Remedy(
        slug="one-process-per-device",
        what="Give every device a process of its own.",
        how="""dist.init_process_group("nccl")
torch.cuda.set_device(local_rank)
model = DistributedDataParallel(model.to(local_rank), device_ids=[local_rank])
# torchrun --nproc-per-node gpu train.py""",
        effect="measure it: distdoctor compare --strategies single,dp,ddp --nproc <devices>",
        safety="every process reads its own share of the data: DistributedSampler; save from rank 0 only",
        source="torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel",
    ),
    Remedy(
        slug="read-now-and-then",
        what="Read numbers from the device once in many steps.",
        how="""total += loss.detach()  # stays on the device
if step % 100 == 0:
    print(total.item() / 100)
    total.zero_()""",
        effect="Python runs ahead of the device again; at most the time that the finding names",
        safety="a NaN is noticed up to so many steps later",
        source="PyTorch performance tuning guide",
    ),
    Remedy(
        slug="reduce-at-once",
        what="Reduce one flat tensor instead of many small ones.",
        how="""flat = torch.nn.utils.parameters_to_vector([p.grad for p in parameters])
dist.all_reduce(flat)
torch.nn.utils.vector_to_parameters(flat / world_size, [p.grad for p in parameters])""",
        effect="one round trip instead of n; the finding names the time of the n",
        safety="same sums; one copy of the gradients more",
        source="torch.nn.parallel.DistributedDataParallel does this in buckets, during backward",
    ),
    Remedy(
        slug="stop-searching",
        what="Leave find_unused_parameters out.",
        how="model = DistributedDataParallel(model)",
        effect="saves the walk over the graph after each forward, whose time the finding names, and one small collective",
        safety="DDP raises in the next forward if a step does leave a parameter out; it does not train wrongly",
        source="torch.nn.parallel.DistributedDataParallel, find_unused_parameters",
    ),
)
