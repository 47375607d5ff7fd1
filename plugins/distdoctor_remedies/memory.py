"""Remedies for memory."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

REMEDIES = (
    Remedy(
        slug="load-shards",
        what="Build on the meta device and let each rank read its own shard, or let rank 0 read and broadcast.",
        how="""with torch.device("meta"):
    model = build()
fully_shard(model)
model.to_empty(device=device)
whole = torch.load(path, mmap=True, weights_only=True) if rank == 0 else {}
options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
set_model_state_dict(model, whole, options=options)""",
        effect="each host holds one whole model instead of one per rank",
        safety="recompute buffers that are not saved after to_empty",
        source="torch.distributed.checkpoint.state_dict; torch.distributed.fsdp.fully_shard",
    ),
    Remedy(
        slug="bound-what-is-kept",
        what="Bound the container (deque(maxlen=...), lru_cache(maxsize=...)), or save and clear it once per epoch.",
        how="""from collections import deque
recent = deque(maxlen=1000)
cache.clear()                    # at the end of an epoch""",
        effect="Memory stays at the bound.",
        safety="dropped entries must be computed or read again",
        source="collections.deque, functools.lru_cache(maxsize=...)",
    ),
    Remedy(
        slug="checkpoint-activations",
        what="Wrap each block in torch.utils.checkpoint.checkpoint: it keeps the input and recomputes the rest in backward.",
        how="""from torch.utils.checkpoint import checkpoint
stream = checkpoint(block, stream, use_reentrant=False)""",
        effect="Activations shrink to one tensor per block plus those of one block; a step computes about a third more.",
        safety="the same gradients; random layers redraw the same numbers",
        source="torch.utils.checkpoint",
    ),
    Remedy(
        slug="detach-what-is-kept",
        what="Keep .item() or .detach() instead of the tensor, so that its graph is freed with the step.",
        how="""total += loss.item()             # or loss.detach(), which does not synchronize with the device
outputs.append(output.detach().cpu())
hidden = hidden.detach()         # between two batches: truncated backpropagation through time""",
        effect="Memory stays constant after the first steps.",
        safety="changes no result, unless gradients through earlier steps were intended",
        source="PyTorch notes, FAQ: My model reports out of memory",
    ),
    Remedy(
        slug="divide-the-memory",
        what="Balance memory across ranks: shard optimizer state (ZeroRedundancyOptimizer), split stages by "
        "bytes, call torch.load with map_location.",
        how="""optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.AdamW, lr=1e-3)
state = torch.load(path, map_location="cpu")""",
        effect="Each of R ranks holds 1/R of what was on one.",
        safety="changes no result; sharded state is gathered for a checkpoint",
        source="torch.distributed.optim.ZeroRedundancyOptimizer; torch.distributed.fsdp.fully_shard; torch.load",
    ),
    Remedy(
        slug="evaluate-without-gradients",
        what="Evaluate under torch.inference_mode() (or no_grad if the outputs enter a graph later).",
        how="""@torch.inference_mode()
def validate(model, loader):
    model.eval()
    ...""",
        effect="The evaluation keeps nothing for backward.",
        safety="changes no result; outputs of inference_mode cannot be used in a graph afterwards",
        source="torch.inference_mode, torch.no_grad",
    ),
    Remedy(
        slug="expand-segments",
        what="Start the job with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.",
        how="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True torchrun ...",
        effect="Blocks are mapped into one growing segment, so adjacent free blocks can be used together.",
        safety="changes no result; CUDA only, and not with every driver",
        source="PyTorch notes, CUDA semantics: Optimizing memory usage with PYTORCH_CUDA_ALLOC_CONF",
    ),
    Remedy(
        slug="fully-shard",
        what="Shard parameters, gradients and optimizer state over the ranks with fully_shard.",
        how="""for block in model.blocks:
    fully_shard(block)
fully_shard(model)""",
        effect="Each of R ranks keeps 1/R of all three; each step sends 1.5 times as much as DDP.",
        safety="changes results only by rounding; checkpoints are sharded",
        source="torch.distributed.fsdp.fully_shard",
    ),
    Remedy(
        slug="gradient-as-bucket-view",
        what="Pass gradient_as_bucket_view=True to DistributedDataParallel, so that gradients share memory "
        "with the buckets.",
        how="model = DistributedDataParallel(model, gradient_as_bucket_view=True)",
        effect="Saves up to one copy of all gradients if backward or the optimizer step is the peak, and nothing if "
        "forward is: measured 334 KiB of 2.07 MiB (mlp) and 0 of 33.9 MiB (gpt) by `distdoctor advise --try`.",
        safety="changes no result; gradients must not be detached in place (torch raises an error then)",
        source="torch.nn.parallel.DistributedDataParallel",
    ),
    Remedy(
        slug="halve-the-micro-batch",
        what="Halve the micro-batch and accumulate two of them per step; then recompute activations; then "
        "shard (fully_shard).",
        how="""for half, (inputs, targets) in enumerate(halves):
    with model.no_sync() if half == 0 else nullcontext():
        (criterion(model(inputs), targets) / 2).backward()
optimizer.step()""",
        effect="Activations halve; parameters, gradients and optimizer state are unchanged.",
        safety="the same gradients except for batch normalization and rounding; a step takes slightly longer",
        source="DistributedDataParallel.no_sync; torch.utils.checkpoint; torch.distributed.fsdp.fully_shard",
    ),
    Remedy(
        slug="let-the-graph-go",
        what="Drop retain_graph=True if backward runs once, and wrap untrained parts in torch.no_grad().",
        how="""loss.backward()
with torch.no_grad():
    target = teacher(inputs)""",
        effect="The activations of one step are freed before the next step allocates its own.",
        safety="changes no result; a second backward through a freed graph raises an error, never a wrong result",
        source="torch.autograd.backward",
    ),
    Remedy(
        slug="lower-host-memory",
        what="Lower num_workers, prefetch_factor or pin_memory of the DataLoader, or raise the memory limit.",
        how="DataLoader(dataset, num_workers=2, prefetch_factor=2, pin_memory=False)",
        effect="each worker holds prefetch_factor batches and its own copy of the dataset memory that Python touches",
        safety="may slow down loading",
        source="Linux: dmesg shows `Out of memory: Killed process`; containers: memory.events (oom_kill)",
    ),
    Remedy(
        slug="make-buckets-lazily",
        what="Pass lazy_bucket_allocation=True to DistributedDataParallel (torch 2.15), so that buckets "
        "exist only during backward.",
        how="model = DistributedDataParallel(model, lazy_bucket_allocation=True)",
        effect="Frees all buckets during forward: measured 128 of 128 MiB there, 30 at the peak of the step.",
        safety="changes no result; the buckets are reallocated in each backward",
        source="torch.nn.parallel.DistributedDataParallel",
    ),
    Remedy(
        slug="offload-to-host",
        what="Offload the shards of parameters, gradients and optimizer state to host memory with CPUOffloadPolicy.",
        how="""fully_shard(block, offload_policy=CPUOffloadPolicy())""",
        effect="The device keeps activations and one gathered block; each step moves the shards over the host link.",
        safety="changes no result; the optimizer steps on the CPU, which is slower",
        source="torch.distributed.fsdp.CPUOffloadPolicy",
    ),
    Remedy(
        slug="set-gradients-to-none",
        what="Call zero_grad() with its default set_to_none=True, which frees gradients instead of filling "
        "them with zeros.",
        how="optimizer.zero_grad()  # not zero_grad(set_to_none=False)",
        effect="Frees the gradients during forward: measured 1.29 MiB of 35.1 MiB (gpt, 2 ranks) by "
        "`distdoctor advise --try`.",
        safety="changes no result; code that reads .grad of an unused parameter gets None instead of zeros, and some optimizers "
        "skip such a parameter instead of decaying it",
        source="torch.optim.Optimizer.zero_grad",
    ),
    Remedy(
        slug="shard-the-optimizer",
        what="Shard the optimizer state over the ranks with ZeroRedundancyOptimizer.",
        how="""optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.AdamW, lr=1e-3)""",
        effect="Each of R ranks keeps 1/R of the state; the updated parameters are sent once per step.",
        safety="changes no result; call consolidate_state_dict() before saving a checkpoint",
        source="torch.distributed.optim.ZeroRedundancyOptimizer",
    ),
    Remedy(
        slug="stay-on-the-own-device",
        what="Call torch.cuda.set_device(local_rank) before anything else touches CUDA, and pass "
        "map_location to torch.load.",
        how="""torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))  # first of all
state = torch.load(path, map_location="cpu")""",
        effect="saves a few hundred MiB per avoided context, on the device that all other ranks would share",
        safety="changes no result",
        source="torch.cuda.set_device; torch.load, map_location",
    ),
)
