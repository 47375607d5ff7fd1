"""Remedies for replicas that are no longer one model."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

REMEDIES = (
    Remedy(
        slug="close-the-window",
        what="Step with the last, incomplete window of an epoch (divided by its own size), or zero it.",
        how="""is_last = (i + 1) % accumulate == 0 or i + 1 == len(loader)
size = accumulate if i < len(loader) - len(loader) % accumulate else len(loader) % accumulate
with nullcontext() if is_last else model.no_sync():
    (criterion(model(inputs), targets) / size).backward()
if is_last:
    optimizer.step()
    optimizer.zero_grad()""",
        effect="every step uses the micro-steps of its own window",
        safety="one step more in each epoch: count it in the scheduler",
        source="transformers, Trainer: gradient accumulation at the end of an epoch",
    ),
    Remedy(
        slug="refresh-everywhere",
        what="Take the copy after wrapping (deepcopy(model.module)), and refresh it on every rank in the same step.",
        how="""model = DistributedDataParallel(net)
teacher = copy.deepcopy(model.module).requires_grad_(False)  # after wrapping: equal on all ranks
...
optimizer.step()
update(teacher, model.module)  # on every rank; nothing rank-dependent around it""",
        effect="every rank learns from, acts by and reports the same model",
        safety="a copy of its own on each rank costs its memory there; the update is local, without communication",
        source="torch.optim.swa_utils.AveragedModel",
    ),
    Remedy(
        slug="align-no-sync",
        what="Let the same condition decide on synchronising and on stepping, with forward and backward in "
        "one context.",
        how="""is_last = (i + 1) % accumulate == 0
with nullcontext() if is_last else model.no_sync():
    loss = criterion(model(inputs), targets) / accumulate
    loss.backward()
if is_last:
    optimizer.step()
    optimizer.zero_grad()""",
        effect="One reduction per step, of the whole accumulated gradient.",
        safety="changes the training from this step on: it becomes the one that was meant",
        source="torch.nn.parallel.DistributedDataParallel.no_sync",
    ),
    Remedy(
        slug="all-reduce-gradients",
        what="Average every gradient over the replicas before the step, and change gradients afterwards on "
        "all ranks alike.",
        how="""model = DistributedDataParallel(model)     # averages while backward computes
# or, by hand, every parameter on every rank:
for parameter in model.parameters():
    if parameter.grad is not None:
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()
optimizer.step()""",
        effect="All replicas take the same step; gradients agree bit for bit.",
        safety="changes the training from the first step on: it becomes the one that was meant",
        source="torch.nn.parallel.DistributedDataParallel",
    ),
    Remedy(
        slug="broadcast-buffers",
        what="Let the wrapper broadcast buffers (its default), convert to SyncBatchNorm, or broadcast them "
        "before evaluating.",
        how="""model = nn.SyncBatchNorm.convert_sync_batchnorm(model)   # statistics of the whole batch, GPU only
model = DistributedDataParallel(model)                   # broadcasts rank 0's buffers before each forward
# or, before evaluation and checkpoints:
for buffer in model.buffers():
    dist.broadcast(buffer, src=0)""",
        effect="Evaluation and checkpoints do not depend on the rank.",
        safety="a broadcast of all buffers in each forward costs some bytes; SyncBatchNorm communicates in every layer",
        source="torch.nn.parallel.DistributedDataParallel, broadcast_buffers",
    ),
    Remedy(
        slug="build-the-optimizer-last",
        what="Construct the optimizer after fully_shard, unfreezing, extending and model.to(device).",
        how="""fully_shard(model)                                 # replaces every parameter
optimizer = torch.optim.AdamW(model.parameters())  # takes the new ones
# unfrozen later:
model.body.requires_grad_(True)
optimizer.add_param_group({"params": model.body.parameters()})""",
        effect="Every parameter that gets a gradient is changed by it.",
        safety="a new optimizer starts without momentum; load its state where it matters",
        source="torch.distributed.fsdp.fully_shard; torch.optim.Optimizer.add_param_group",
    ),
    Remedy(
        slug="call-the-wrapper",
        what="Call the DistributedDataParallel wrapper itself, not .module: its forward prepares the "
        "gradient reduction.",
        how="""loss = criterion(model(inputs), targets)    # not model.module(inputs)
# A method other than forward: reach it through forward.
class Net(nn.Module):
    def forward(self, inputs, task="classify"):
        return getattr(self, task)(inputs)""",
        effect="Gradients are averaged in backward; all replicas take the same step.",
        safety="changes the training from this step on: it becomes the one that was meant",
        source="torch.nn.parallel.DistributedDataParallel",
    ),
    Remedy(
        slug="change-every-replica",
        what="Do on every rank what changes weights between steps (reload, clamp, EMA, re-initialise), or "
        "broadcast afterwards.",
        how="""with torch.no_grad():
    for tensor in (*model.parameters(), *model.buffers()):
        dist.broadcast(tensor, src=0)""",
        effect="All replicas hold the same bits again.",
        safety="the other ranks' weights are replaced by those of rank 0",
        source="torch.nn.parallel.DistributedDataParallel: parameters are never broadcast between processes",
    ),
    Remedy(
        slug="check-hardware",
        what="Test the memory and the device of that rank's host (dcgmi diag, memtester), and replace it if "
        "this happens again.",
        how="""nvidia-smi -q -d ECC          # corrected and uncorrected errors
dcgmi diag -r 3               # NVIDIA's own tests of device, memory and links
journalctl -k | grep -i -E 'mce|edac|xid'""",
        effect="A second single-bit difference on the same host is no accident.",
        safety="the tests need an idle device",
        source="Dixit et al., Silent Data Corruptions at Scale, 2021",
    ),
    Remedy(
        slug="clip-the-whole-gradient",
        what="Call clip_grad_norm_ after the gradients are averaged; over shards, use the norm over all of them.",
        how="""for parameter in model.parameters():
    dist.all_reduce(parameter.grad)
    parameter.grad /= dist.get_world_size()
torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)   # now it is the same everywhere
# shards: FSDP1 has a method of its own, DTensor parameters (fully_shard) need nothing special
model.clip_grad_norm_(1.0)
# shards by hand:
square = sum(p.grad.square().sum() for p in shards)
dist.all_reduce(square)""",
        effect="All ranks multiply by the same factor: the step keeps its direction.",
        safety="the norm of the mean is smaller than the mean of the norms, so a limit tuned on local norms bites less",
        source="torch.nn.utils.clip_grad_norm_",
    ),
    Remedy(
        slug="divide-by-ranks-once",
        what="Divide gradients summed by all_reduce by world_size once; after DistributedDataParallel, do not divide.",
        how="""dist.all_reduce(parameter.grad)                  # SUM
parameter.grad /= dist.get_world_size()
# NCCL averages by itself: dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)""",
        effect="The optimizer uses the mean over all ranks, whatever their number.",
        safety="changes the size of the gradients; a learning rate that was tuned to the old size has to be tuned again",
        source="torch.nn.parallel.DistributedDataParallel",
    ),
    Remedy(
        slug="divide-once",
        what="Divide each micro-step's mean loss once by the number of micro-steps, before loss.backward().",
        how="""for inputs, targets in micro_batches:                 # `accumulate` of them
    (criterion(model(inputs), targets) / accumulate).backward()
optimizer.step()""",
        effect="Gradients are those of the mean over the whole batch, whatever the number of micro-steps.",
        safety="changes the size of the gradients; a learning rate that was tuned to the old size has to be tuned again",
        source="PyTorch, Automatic Mixed Precision examples, gradient accumulation",
    ),
    Remedy(
        slug="gather-with-gradient",
        what="Gather with torch.distributed.nn.functional.all_gather, which autograd tracks, or put this "
        "rank's own features back.",
        how="""from torch.distributed.nn.functional import all_gather
everybody = torch.cat(all_gather(features))        # gradients flow back to every rank
# or: others' features as constants, one's own with gradient
gathered = [torch.empty_like(features) for _ in range(world_size)]
dist.all_gather(gathered, features)
gathered[rank] = features
everybody = torch.cat(gathered)""",
        effect="The gradient of the gathered features is no longer missing.",
        safety="backward reduces the features' gradients once: their bytes more; DistributedDataParallel divides by the ranks, "
        "which a loss over all ranks has to make up for",
        source="torch.distributed.nn.functional.all_gather",
    ),
    Remedy(
        slug="match-the-baseline",
        what="Correct the factor where it arises, or debug the first layer that differs; then run "
        "`distdoctor check-grads --against single` again.",
        how="""distdoctor check-grads --strategy ddp --model mylab.nets:small --against single
# 2 = ranks:        divide after all_reduce(SUM), once
# 4 = micro-steps:  loss / accumulate before backward
# 1/2, 1/4:         one division too many
# no factor:        the same command with --precision fp32, then on another machine""",
        effect="The strategy trains with the gradients of the whole batch.",
        safety="a learning rate that was tuned with the wrong factor has to be tuned again",
        source="`distdoctor compare` shows the loss of strategies side by side",
    ),
    Remedy(
        slug="normalise-the-whole-batch",
        what="Nothing is broken: use SyncBatchNorm (or GroupNorm, LayerNorm) where the strategy has to equal "
        "one process.",
        how="""model = nn.SyncBatchNorm.convert_sync_batchnorm(model)   # before wrapping; on GPUs
model = DistributedDataParallel(model, device_ids=[local_rank])""",
        effect="Mean and variance are those of the whole batch on every number of ranks, and the gradients with them.",
        safety="two small collectives more for each such layer; results change, as with batches of another size",
        source="torch.nn.SyncBatchNorm",
    ),
    Remedy(
        slug="same-branch-everywhere",
        what="Take the same branch on every rank (broadcast the decision), or all_reduce zeros for "
        "parameters that a rank did not use.",
        how="""chosen = torch.tensor([int(wanted)])
dist.broadcast(chosen, src=0)                          # one decision for all ranks
# or, with gradients averaged by hand:
for parameter in model.parameters():
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    dist.all_reduce(parameter.grad)
# or let the wrapper do it:
model = DistributedDataParallel(model, find_unused_parameters=True)""",
        effect="Every gradient is averaged with those of the same parameter.",
        safety="zeros make the mean smaller where few ranks use a parameter, as DistributedDataParallel does; costs their bytes",
        source="torch.nn.parallel.DistributedDataParallel, find_unused_parameters",
    ),
    Remedy(
        slug="same-initial-weights",
        what="Call torch.manual_seed with the same seed on every rank before the model is built, or "
        "broadcast parameters and buffers from rank 0.",
        how="""torch.manual_seed(seed)            # the same on every rank, before the model is built
model = build_model()
for tensor in (*model.parameters(), *model.buffers()):
    dist.broadcast(tensor.data, src=0)  # where a checkpoint or a cache may differ""",
        effect="All replicas hold the same bits before the first step.",
        safety="ranks other than 0 start from other weights than before",
        source="torch.nn.parallel.DistributedDataParallel broadcasts once at construction (init_sync)",
    ),
    Remedy(
        slug="same-optimizer-state",
        what="Call optimizer.load_state_dict with the same state on every rank, and change it on every rank "
        "or on none.",
        how="""checkpoint = torch.load(path, map_location=device)   # on every rank
optimizer.load_state_dict(checkpoint["optimizer"])""",
        effect="Momentum and variance agree bit for bit, and so do the next steps.",
        safety="ranks that had another state take other steps than before",
        source="torch.optim.Optimizer.load_state_dict",
    ),
    Remedy(
        slug="same-schedule",
        what="Call scheduler.step() on every rank, with the same metric: all_reduce the metric first.",
        how="""metric = torch.tensor([val_loss], device=device)
dist.all_reduce(metric, op=dist.ReduceOp.AVG)      # gloo: SUM, then divide
scheduler.step(metric.item())""",
        effect="All replicas step with the same learning rate.",
        safety="one small all_reduce for each decision",
        source="torch.optim.lr_scheduler.ReduceLROnPlateau",
    ),
    Remedy(
        slug="norm-over-every-shard",
        what="Sum the squares of shards over the group that shards them, count replicas once, and clip by that norm everywhere.",
        how="""own = sum(p.grad.square().sum() for p in sharded)     # each rank's part
dist.all_reduce(own, group=shard_group)               # of all parts
norm = (own + sum(p.grad.square().sum() for p in replicated)).sqrt()
torch.nn.utils.clip_grads_with_norm_(model.parameters(), limit, norm)""",
        effect="Every rank scales by the same factor; shared parameters stay equal.",
        safety="one small all_reduce a step; the clipping is the one that was meant",
        source="torch.nn.utils.clip_grads_with_norm_; Megatron-LM, optimizer/clip_grads.py",
    ),
    Remedy(
        slug="reduce-over-the-group",
        what="Sum the gradients of what a tensor- or sequence-parallel group shares over that group, before the step.",
        how="""for module in model.modules():
    if isinstance(module, nn.LayerNorm):               # sees a part of the sequence on each rank
        for parameter in module.parameters():
            dist.all_reduce(parameter.grad, group=sequence_group)""",
        effect="The shared layer takes one step with its whole gradient.",
        safety="some small all_reduces a step; flatten them into one where there are many",
        source="Megatron-LM, finalize_model_grads; torch.distributed.tensor.parallel.SequenceParallel",
    ),
    Remedy(
        slug="seed-by-rank",
        what="Call torch.manual_seed(seed + rank) after the model is built on replicas; use one seed within "
        "a tensor-parallel group.",
        how="""torch.manual_seed(seed)                  # the same first weights everywhere
model = DistributedDataParallel(Net())
torch.manual_seed(seed + rank)           # other dropout masks on every replica
# tensor parallel over a group: the number of the data share, not of the rank
torch.manual_seed(seed + data_rank)
# checkpoints: the default restores the random state before it recomputes
checkpoint(block, inputs, use_reentrant=False)""",
        effect="Replicas drop different units; ranks that share a layer drop the same ones.",
        safety="the training draws other random numbers than before, so losses are not comparable bit by bit",
        source="Megatron-LM, tensor_parallel/random.py; torch.utils.checkpoint",
    ),
    Remedy(
        slug="wrap-last",
        what="Unfreeze, add, move and cast parameters first, then wrap the model in DistributedDataParallel, "
        "then build the optimizer.",
        how="""model.body.requires_grad_(True)
model.to(device)
model = DistributedDataParallel(model)             # takes stock of what is trained
optimizer = torch.optim.AdamW(model.parameters())  # after every change, wrap and make it again""",
        effect="Every trained parameter is averaged.",
        safety="a new optimizer starts without momentum; load its state where it matters",
        source="torch.nn.parallel.DistributedDataParallel, warning on parameters that change later",
    ),
    Remedy(
        slug="zero-grad",
        what="Call optimizer.zero_grad() once per step, before its first backward.",
        how="""optimizer.zero_grad()
loss = criterion(model(inputs), targets)
loss.backward()
optimizer.step()""",
        effect="Each step uses its own gradients.",
        safety="changes the training from the second step on: it becomes the one that was meant",
        source="torch.optim.Optimizer.zero_grad",
    ),
)
