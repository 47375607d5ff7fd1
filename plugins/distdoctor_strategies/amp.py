"""Automatic mixed precision: autocast chooses 16 bits where they are safe, GradScaler keeps small fp16 gradients alive."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distdoctor.errors import WrongUse
from distdoctor.offers import Strategy
from distdoctor.workloads.request import TrainingRequest, refuse_offload, require_even_shares

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

AMP = Strategy(
    name="amp",
    summary="autocast and GradScaler, over one process or over DDP",
    train="distdoctor_strategies.amp:train",
)


def validate(request: TrainingRequest, world_size: int) -> None:
    refuse_offload(request)
    require_even_shares(request, world_size)
    if request.precision == "fp32":
        raise WrongUse(
            "amp with --precision fp32 would train in full precision",
            way_out="Take --precision bf16 or fp16, or --strategy single or ddp for full precision.",
        )


def train(training: Training) -> None:
    """Train in fp16 with a scaler, or in bf16, which needs none."""
    from torch.nn.parallel import DistributedDataParallel

    from distdoctor.workloads.arrangement import Alone, Replica

    precision = training.request.precision or "fp16"
    module = training.make_model()
    if training.world_size == 1:
        training.fit(Alone(module, precision=precision))
        return
    model = DistributedDataParallel(module, device_ids=training.device_ids, gradient_as_bucket_view=True)
    arrangement = Replica(model, module=module, precision=precision)
    training.fit(arrangement.reading_share(training.rank, training.world_size))
