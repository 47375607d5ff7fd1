"""Remedies for speed and cost."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

REMEDIES = (
    Remedy(
        slug="collect-together",
        what="Freeze long-lived objects (gc.freeze) and call gc.collect() in the same step on every rank.",
        how="""gc.disable()
gc.collect()
gc.freeze()  # model, optimizer, dataset: never traversed again
for step, batch in enumerate(loader, 1):
    ...
    if step % 1000 == 0:
        gc.collect(1)  # on every rank in this step""",
        effect="saves the time that the finding names; all ranks then pause at the same moment",
        safety="garbage cycles live until the next collection: choose the interval by memory",
        source="CPython, gc.freeze; torchtitan, tools/utils.py GarbageCollection",
    ),
    Remedy(
        slug="compile-dynamic",
        what="Pad batches to a few fixed lengths, or compile with dynamic=True (torch._dynamo.mark_dynamic for one dimension).",
        how="""model = torch.compile(model, dynamic=True)
# or: torch._dynamo.mark_dynamic(inputs, 1)
# or: pad to the next multiple of 128""",
        effect="saves the seconds that the finding names, and avoids the fallback to uncompiled code after the eighth version",
        safety="dynamic kernels may be slightly slower than static ones; padding computes more",
        source="torch.compile, dynamic shapes",
    ),
    Remedy(
        slug="deal-out-work",
        what="Balance tokens instead of samples: sort a window by length and deal it round-robin to the ranks, or pack.",
        how="""order = sorted(window, key=lengths.__getitem__)
mine = order[rank::world_size]  # similar lengths go to different ranks""",
        effect="saves up to the others' wait, which the finding names",
        safety="the same samples in a different order; keep windows random over epochs",
        source="transformers LengthGroupedSampler; sequence packing",
    ),
    Remedy(
        slug="drop-barriers",
        what="Remove the dist.barrier() call from the step.",
        effect="saves the time in the barrier after all ranks arrived; a rank that is late once can catch up",
        safety="keep barriers that guard effects outside collectives: files, folders, external processes",
        source="torch.distributed.barrier",
    ),
    Remedy(
        slug="fill-the-pipeline",
        what="Raise n_microbatches, and split the model into stages with equal compute times.",
        how="""schedule = Schedule1F1B(stage, n_microbatches=4 * stages, loss_fn=loss_fn)
# uneven: move layers from the stage that computes longest to its neighbours""",
        effect="the bubble is (p - 1) / (m + p - 1) of a step: p stages, m micro-batches",
        safety="same gradients; 1F1B keeps the activations of p micro-batches, GPipe those of m",
        source="torch.distributed.pipelining; Huang et al., GPipe, 2019",
    ),
    Remedy(
        slug="hide-communication",
        what="Send fewer bytes (bf16_compress_hook, no_sync, a larger batch), or send earlier (a smaller "
        "bucket_cap_mb).",
        how="""from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
model.register_comm_hook(None, default_hooks.bf16_compress_hook)  # half the bytes
# or: a larger batch; accumulation under no_sync(); bucket_cap_mb=5 if one bucket holds everything""",
        effect="half the bytes: up to half the exposed time; n micro-batches under no_sync: 1/n of it per sample",
        safety="16-bit gradients lose precision; a larger batch changes the training",
        source="torch.distributed.algorithms.ddp_comm_hooks; torch.nn.parallel.DistributedDataParallel",
    ),
    Remedy(
        slug="keep-constants-unsent",
        what="Pass broadcast_buffers=False to DistributedDataParallel, or keep what never changes as plain tensors instead of "
        "buffers.",
        how="""model = DistributedDataParallel(model, broadcast_buffers=False)
# or, of one module: self.mask = mask  # instead of self.register_buffer("mask", mask)""",
        effect="saves their bytes in each forward",
        safety="changes no result while no rank changes a buffer",
        source="torch.nn.parallel.DistributedDataParallel, broadcast_buffers",
    ),
    Remedy(
        slug="load-ahead",
        what="Raise num_workers and prefetch_factor of the DataLoader, so that batches are ready in time.",
        how="DataLoader(dataset, ..., num_workers=4, persistent_workers=True, prefetch_factor=4, pin_memory=True)",
        effect="saves at most the time that the finding names, once workers deliver batches faster than the model uses them",
        safety="randomness inside the dataset then comes from the workers' seeds; workers take memory and cores",
        source="torch.utils.data.DataLoader",
    ),
    Remedy(
        slug="mixed-precision",
        what="Run forward and loss under torch.autocast in bfloat16 or float16.",
        how="""with torch.autocast("cuda", torch.bfloat16):
    loss = criterion(model(inputs), targets)""",
        effect="Halves what matrix multiplications keep for backward; parameters and optimizer state stay in fp32.",
        safety="rounds to 8 bits of mantissa (bf16); fp16 needs a GradScaler",
        source="torch.amp",
    ),
    Remedy(
        slug="nccl-for-devices",
        what="Initialize the process group with the nccl backend for CUDA tensors (init_process_group).",
        how='dist.init_process_group("cpu:gloo,cuda:nccl", device_id=torch.device("cuda", local_rank))',
        effect="avoids the copy to the host and back; uses the device link instead of a socket",
        safety="one rank per device: NCCL refuses two",
        source="torch.distributed, which backend to use",
    ),
    Remedy(
        slug="no-sync",
        what="Wrap all but the last micro-batch in model.no_sync(), so that gradients are averaged once per "
        "optimizer step.",
        how="""is_last = (i + 1) % accumulate == 0
with nullcontext() if is_last else model.no_sync():
    loss = criterion(model(inputs), targets) / accumulate
    loss.backward()
if is_last:
    optimizer.step()
    optimizer.zero_grad()""",
        effect="saves (n - 1) / n of a step's bytes, and the time that each pass waits for its buckets",
        safety="same gradients up to rounding; keep the forward inside the context as well",
        source="torch.nn.parallel.DistributedDataParallel.no_sync",
    ),
    Remedy(
        slug="one-process-per-device",
        what="Replace nn.DataParallel with DistributedDataParallel with one process per device (torchrun).",
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
        what="Call .item(), .cpu() or print only every N steps, and accumulate on the device in between.",
        how="""total += loss.detach()  # stays on the device
if step % 100 == 0:
    print(total.item() / 100)
    total.zero_()""",
        effect="lets Python run ahead of the device again; saves at most the time that the finding names",
        safety="a NaN is noticed up to N steps later",
        source="PyTorch performance tuning guide",
    ),
    Remedy(
        slug="reduce-at-once",
        what="Flatten the tensors (parameters_to_vector) and all_reduce them in one call.",
        how="""flat = torch.nn.utils.parameters_to_vector([p.grad for p in parameters])
dist.all_reduce(flat)
torch.nn.utils.vector_to_parameters(flat / world_size, [p.grad for p in parameters])""",
        effect="one round trip instead of n, whose time the finding names",
        safety="same sums; one extra copy of the gradients",
        source="torch.nn.parallel.DistributedDataParallel does this in buckets, during backward",
    ),
    Remedy(
        slug="reduce-now-and-then",
        what="Accumulate the number on each rank, and all_reduce the sum only every N steps.",
        how="""total += loss.detach()  # stays on the rank
if step % 100 == 0:
    dist.all_reduce(total)
    print(total.item() / 100 / world_size)
    total.zero_()""",
        effect="saves the time that the finding names",
        safety="the displayed value is the mean of 100 steps; early stopping decides only that often",
        source="PyTorch performance tuning guide",
    ),
    Remedy(
        slug="stop-searching",
        what="Drop find_unused_parameters=True from DistributedDataParallel.",
        how="model = DistributedDataParallel(model)",
        effect="saves the graph traversal after each forward, whose time the finding names, and one small collective",
        safety="DDP raises in the next forward if a step does not use a parameter; it never trains wrongly",
        source="torch.nn.parallel.DistributedDataParallel, find_unused_parameters",
    ),
)
