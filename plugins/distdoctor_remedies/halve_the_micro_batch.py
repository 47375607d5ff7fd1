"""Halve the batch that goes through the model at once."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

HALVE_THE_MICRO_BATCH = Remedy(
    slug="halve-the-micro-batch",
    what="Halve the micro-batch and accumulate two of them per step; then recompute activations; then shard (fully_shard).",
    how="""for half, (inputs, targets) in enumerate(halves):
    with model.no_sync() if half == 0 else nullcontext():
        (criterion(model(inputs), targets) / 2).backward()
optimizer.step()""",
    effect="Activations halve; parameters, gradients and optimizer state stay what they are.",
    safety="the same gradients, but for batch normalisation and rounding; a step takes somewhat longer",
    source="DistributedDataParallel.no_sync; torch.utils.checkpoint; torch.distributed.fsdp.fully_shard",
)
