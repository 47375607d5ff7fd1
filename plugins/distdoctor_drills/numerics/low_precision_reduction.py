"""Gradients are averaged in bfloat16, although parameters and gradients are float32."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from distdoctor.offers import Drill

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

LOW_PRECISION_REDUCTION = Drill(
    slug="low-precision-reduction",
    code="DD805",
    summary="a communication hook of DistributedDataParallel sends gradients in bfloat16",
    expect="DD805: gradients are averaged in bfloat16, with the measured error",
    plant="distdoctor_drills.numerics.low_precision_reduction:plant",
    ranks=(),
    strategies=("ddp",),
    arguments={"steps": 12},
)


def plant(training: Training) -> None:
    """Half the bytes."""

    def compress(training: Training) -> None:
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook

        model: Any = training.arrangement.model
        model.register_comm_hook(None, bf16_compress_hook)

    training.on("training_start", compress)
