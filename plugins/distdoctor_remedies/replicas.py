"""Remedies for replicas that are no longer one model."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

REMEDIES = (
    Remedy(
        slug="close-the-window",
        what="Step with the last, incomplete accumulation window of an epoch (divided by its own size), or zero it.",
        how="""is_last = (i + 1) % accumulate == 0 or i + 1 == len(loader)
size = accumulate if i < len(loader) - len(loader) % accumulate else len(loader) % accumulate
with nullcontext() if is_last else model.no_sync():
    (criterion(model(inputs), targets) / size).backward()
if is_last:
    optimizer.step()
    optimizer.zero_grad()""",
        effect="every step uses only the micro-batches of its own window",
        safety="adds one step per epoch: count it in the scheduler",
        source="transformers, Trainer: gradient accumulation at the end of an epoch",
    ),
    Remedy(
        slug="as-long-as-the-training",
        what="Lay the schedule out for as many moves as it makes: count updates, move it once in each (in Lightning by "
        '"interval": "step"), or let accelerate prepare a schedule that is num_processes times as long.',
        how="""updates = epochs * len(loader)                     # after prepare(): the batches of one process
scheduler = LinearLR(optimizer, total_iters=updates)   # not prepared: it moves once per update
# or prepared, which moves it num_processes times per update:
scheduler = accelerator.prepare(LinearLR(optimizer, total_iters=updates * accelerator.num_processes))""",
        effect="The learning rate falls to zero when the training ends, not before.",
        safety="changes the learning rate of every step, to the intended one",
        source="accelerate.scheduler.AcceleratedScheduler: step_with_optimizer, split_batches",
    ),
    Remedy(
        slug="one-order-everywhere",
        what="Give the optimizer its parameters in one order on all ranks: sort the names, do not go through a set.",
        how="""names = sorted(decay)      # a set of names has another order in each process
groups = [{"params": [named[name] for name in names], "weight_decay": 0.1}]""",
        effect="What is reduced in the order of the optimizer is the gradient of the same parameter on every rank.",
        safety="a saved state of this optimizer is in the old order: load it by name, or start without it",
        source="object.__hash__ in Python's reference: hashes of str differ between processes (PYTHONHASHSEED)",
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
        safety="each rank holds its own copy in memory; the update is local, without communication",
        source="torch.optim.swa_utils.AveragedModel",
    ),
    Remedy(
        slug="align-no-sync",
        what="Synchronize and step under the same condition, with forward and backward in the same context.",
        how="""is_last = (i + 1) % accumulate == 0
with nullcontext() if is_last else model.no_sync():
    loss = criterion(model(inputs), targets) / accumulate
    loss.backward()
if is_last:
    optimizer.step()
    optimizer.zero_grad()""",
        effect="One reduction per step, of the whole accumulated gradient.",
        safety="changes the training from this step on, to the intended one",
        source="torch.nn.parallel.DistributedDataParallel.no_sync",
    ),
    Remedy(
        slug="all-reduce-gradients",
        what="Average every gradient over the replicas before the step, and change gradients afterwards in "
        "the same way on all ranks.",
        how="""model = DistributedDataParallel(model)     # averages while backward computes
# or, by hand, every parameter on every rank:
for parameter in model.parameters():
    if parameter.grad is not None:
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()
optimizer.step()""",
        effect="All replicas take the same step; gradients agree bit for bit.",
        safety="changes the training from the first step on, to the intended one",
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
        effect="Evaluation and checkpoints no longer depend on the rank.",
        safety="broadcasting all buffers in each forward costs some bandwidth; SyncBatchNorm communicates in every layer",
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
        effect="The optimizer updates every parameter that gets a gradient.",
        safety="a new optimizer starts without momentum; load its state if that matters",
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
        safety="changes the training from this step on, to the intended one",
        source="torch.nn.parallel.DistributedDataParallel",
    ),
    Remedy(
        slug="change-every-replica",
        what="Change weights between steps (reload, clamp, EMA, re-initialize) on every rank, or broadcast them afterwards.",
        how="""with torch.no_grad():
    for tensor in (*model.parameters(), *model.buffers()):
        dist.broadcast(tensor, src=0)""",
        effect="All replicas hold the same bits again.",
        safety="rank 0's weights replace those of the other ranks",
        source="torch.nn.parallel.DistributedDataParallel: parameters are never broadcast between processes",
    ),
    Remedy(
        slug="check-hardware",
        what="Test the memory and the device of that rank's host (dcgmi diag, memtester), and replace it if "
        "this happens again.",
        how="""nvidia-smi -q -d ECC          # corrected and uncorrected errors
dcgmi diag -r 3               # NVIDIA's own tests of device, memory and links
journalctl -k | grep -i -E 'mce|edac|xid'""",
        effect="Confirms whether the hardware is faulty; a second single-bit difference on the same host is no accident.",
        safety="the tests need an idle device",
        source="Dixit et al., Silent Data Corruptions at Scale, 2021",
    ),
    Remedy(
        slug="clip-the-whole-gradient",
        what="Call clip_grad_norm_ after the gradients are averaged; over shards, use the norm over all of them.",
        how="""for parameter in model.parameters():
    dist.all_reduce(parameter.grad)
    parameter.grad /= dist.get_world_size()
torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)   # the norm is now the same everywhere
# shards: FSDP1 has its own method, DTensor parameters (fully_shard) need nothing special
model.clip_grad_norm_(1.0)
# shards by hand:
square = sum(p.grad.square().sum() for p in shards)
dist.all_reduce(square)""",
        effect="All ranks multiply by the same factor: the step keeps its direction.",
        safety="the norm of the mean is smaller than the mean of the norms, so a limit tuned on local norms clips less",
        source="torch.nn.utils.clip_grad_norm_",
    ),
    Remedy(
        slug="divide-by-ranks-once",
        what="Divide gradients summed by all_reduce by world_size once; after DistributedDataParallel, do not divide.",
        how="""dist.all_reduce(parameter.grad)                  # SUM
parameter.grad /= dist.get_world_size()
# NCCL can average: dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)""",
        effect="The optimizer uses the mean over all ranks, at any world size.",
        safety="changes the size of the gradients; retune a learning rate that was tuned to the old size",
        source="torch.nn.parallel.DistributedDataParallel",
    ),
    Remedy(
        slug="divide-once",
        what="Divide each micro-batch's mean loss once by the number of micro-batches, before loss.backward().",
        how="""for inputs, targets in micro_batches:                 # `accumulate` of them
    (criterion(model(inputs), targets) / accumulate).backward()
optimizer.step()""",
        effect="Gradients are those of the mean over the whole batch, for any number of micro-batches.",
        safety="changes the size of the gradients; retune a learning rate that was tuned to the old size",
        source="PyTorch, Automatic Mixed Precision examples, gradient accumulation",
    ),
    Remedy(
        slug="gather-with-gradient",
        what="Gather with torch.distributed.nn.functional.all_gather, which autograd tracks, or put this "
        "rank's own features back.",
        how="""from torch.distributed.nn.functional import all_gather
all_features = torch.cat(all_gather(features))     # gradients flow back to every rank
# or: other ranks' features as constants, this rank's own with gradient
gathered = [torch.empty_like(features) for _ in range(world_size)]
dist.all_gather(gathered, features)
gathered[rank] = features
all_features = torch.cat(gathered)""",
        effect="The gradient of the gathered features is no longer missing.",
        safety="backward reduces the features' gradients once more; DistributedDataParallel divides by the number of ranks, "
        "which a loss over all ranks must compensate",
        source="torch.distributed.nn.functional.all_gather",
    ),
    Remedy(
        slug="reduce-with-gradient",
        what="Sum with torch.distributed.nn.functional.all_reduce, which autograd tracks, and use what it returns.",
        how="""from torch.distributed.nn.functional import all_reduce
total = all_reduce(part)                           # a new tensor; backward sums its gradient over the ranks
# for a log alone: dist.all_reduce(part.detach().clone())""",
        effect="Each rank's part gets the gradient of all ranks' losses.",
        safety="changes the size of the gradients; retune a learning rate that was tuned to the smaller ones",
        source="torch.distributed.nn.functional.all_reduce",
    ),
    Remedy(
        slug="match-the-baseline",
        what="Correct the factor where it arises, or debug the first layer that differs; then run "
        "`distdoctor check-grads --against single` again.",
        how="""distdoctor check-grads --strategy ddp --model mylab.nets:small --against single
# 2 = ranks:         divide after all_reduce(SUM), once
# 4 = micro-batches: loss / accumulate before backward
# 1/2, 1/4:          one division too many
# no factor:         the same command with --precision fp32, then on another machine""",
        effect="The strategy trains with the gradients of the whole batch.",
        safety="retune a learning rate that was tuned with the wrong factor",
        source="`distdoctor compare` shows the loss of strategies side by side",
    ),
    Remedy(
        slug="normalise-the-whole-batch",
        what="Nothing is broken; use SyncBatchNorm (or GroupNorm, LayerNorm) if the strategy must match a single process.",
        how="""model = nn.SyncBatchNorm.convert_sync_batchnorm(model)   # before wrapping; on GPUs
model = DistributedDataParallel(model, device_ids=[local_rank])""",
        effect="Mean, variance and gradients are those of the whole batch at any world size.",
        safety="adds two small collectives per such layer; results change, as with a different batch size",
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
        effect="Every gradient is averaged with gradients of the same parameter.",
        safety="zeros shrink the mean when few ranks use a parameter, as in DistributedDataParallel; costs their bandwidth",
        source="torch.nn.parallel.DistributedDataParallel, find_unused_parameters",
    ),
    Remedy(
        slug="same-initial-weights",
        what="Call torch.manual_seed with the same seed on every rank before the model is built, or "
        "broadcast parameters and buffers from rank 0.",
        how="""torch.manual_seed(seed)            # the same on every rank, before the model is built
model = build_model()
for tensor in (*model.parameters(), *model.buffers()):
    dist.broadcast(tensor.data, src=0)  # if a checkpoint or a cache may differ""",
        effect="All replicas hold the same bits before the first step.",
        safety="ranks other than 0 start from different weights than before",
        source="torch.nn.parallel.DistributedDataParallel broadcasts once at construction (init_sync)",
    ),
    Remedy(
        slug="same-optimizer-state",
        what="Call optimizer.load_state_dict with the same state on every rank, and change the state on every rank or none.",
        how="""checkpoint = torch.load(path, map_location=device)   # on every rank
optimizer.load_state_dict(checkpoint["optimizer"])""",
        effect="Momentum and variance agree bit for bit, and so do the next steps.",
        safety="ranks that had a different state take different steps than before",
        source="torch.optim.Optimizer.load_state_dict",
    ),
    Remedy(
        slug="same-schedule",
        what="Call scheduler.step() on every rank; where it takes a metric, with the same one: all_reduce the metric first.",
        how="""metric = torch.tensor([val_loss], device=device)
dist.all_reduce(metric, op=dist.ReduceOp.AVG)      # gloo: SUM, then divide
scheduler.step(metric.item())""",
        effect="All replicas step with the same learning rate.",
        safety="costs one small all_reduce per decision",
        source="torch.optim.lr_scheduler.ReduceLROnPlateau",
    ),
    Remedy(
        slug="norm-over-every-shard",
        what="Sum the squares of shards over the group that shards them, count replicas once, and clip by that norm everywhere.",
        how="""own = sum(p.grad.square().sum() for p in sharded)     # each rank's part
dist.all_reduce(own, group=shard_group)               # summed over all ranks of the group
norm = (own + sum(p.grad.square().sum() for p in replicated)).sqrt()
torch.nn.utils.clip_grads_with_norm_(model.parameters(), limit, norm)""",
        effect="Every rank scales by the same factor; shared parameters stay equal.",
        safety="costs one small all_reduce per step; clipping is now the intended one",
        source="torch.nn.utils.clip_grads_with_norm_; Megatron-LM, optimizer/clip_grads.py",
    ),
    Remedy(
        slug="reduce-over-the-group",
        what="Sum gradients of parameters shared by a tensor- or sequence-parallel group over that group before the step.",
        how="""for module in model.modules():
    if isinstance(module, nn.LayerNorm):               # sees part of the sequence on each rank
        for parameter in module.parameters():
            dist.all_reduce(parameter.grad, group=sequence_group)""",
        effect="The shared layer takes one step with its whole gradient.",
        safety="costs some small all_reduces per step; flatten them into one if there are many",
        source="Megatron-LM, finalize_model_grads; torch.distributed.tensor.parallel.SequenceParallel",
    ),
    Remedy(
        slug="seed-by-rank",
        what="Call torch.manual_seed(seed + rank) after the model is built on replicas; use one seed within "
        "a tensor-parallel group.",
        how="""torch.manual_seed(seed)                  # the same initial weights everywhere
model = DistributedDataParallel(Net())
torch.manual_seed(seed + rank)           # different dropout masks on every replica
# tensor parallel over a group: the data-parallel rank, not the global rank
torch.manual_seed(seed + data_rank)
# checkpoints: the default restores the RNG state before recomputing
checkpoint(block, inputs, use_reentrant=False)""",
        effect="Replicas drop different units; ranks that share a layer drop the same ones.",
        safety="the training draws different random numbers than before, so losses are no longer comparable bit for bit",
        source="Megatron-LM, tensor_parallel/random.py; torch.utils.checkpoint",
    ),
    Remedy(
        slug="train-again",
        what="Call model.train() at the end of every evaluation, on every rank, or at the beginning of every epoch.",
        how="""model.eval()
score = evaluate(model)
model.train()""",
        effect="Dropout and batch normalization train again, in the same way on all ranks.",
        source="torch.nn.Module.eval",
    ),
    Remedy(
        slug="shift-targets",
        what="Add to the targets how many rows the ranks before this one have.",
        how="""n = len(q)
targets = torch.arange(n) + n * dist.get_rank()
loss = F.cross_entropy(q @ gathered.T, targets)""",
        effect="Each row's target is its own pair on every rank.",
        safety="the loss is another one: the training changes",
        source="facebookresearch/moco-v3, moco/builder.py",
    ),
    Remedy(
        slug="wrap-last",
        what="Unfreeze, add, move and cast parameters first, then wrap the model in DistributedDataParallel, "
        "then build the optimizer.",
        how="""model.body.requires_grad_(True)
model.to(device)
model = DistributedDataParallel(model)             # registers the trainable parameters
optimizer = torch.optim.AdamW(model.parameters())  # after every change, wrap and rebuild it""",
        effect="Every trained parameter is averaged.",
        safety="a new optimizer starts without momentum; load its state if that matters",
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
        safety="changes the training from the second step on, to the intended one",
        source="torch.optim.Optimizer.zero_grad",
    ),
)
