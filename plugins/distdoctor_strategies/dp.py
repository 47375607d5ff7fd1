"""DataParallel: one process, several GPUs; the model is copied to each of them in every step. DDP is faster everywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distdoctor.offers import Strategy
from distdoctor.workloads.request import TrainingRequest, refuse_offload, require_even_shares

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

DP = Strategy(
    name="dp",
    summary="DataParallel: one process, its GPUs share each batch; kept for comparison with ddp",
    train="distdoctor_strategies.dp:train",
    world_sizes="1; more ranks have nothing to do",
)


def validate(request: TrainingRequest, world_size: int) -> None:
    refuse_offload(request)
    require_even_shares(request, 1)


def train(training: Training) -> None:
    """Train behind DataParallel where there are two GPUs or more, else the plain module."""
    import torch
    from torch import nn

    from distdoctor.workloads.arrangement import Alone

    if training.left_to_rank_zero():
        return
    module = training.make_model()
    gpus = torch.cuda.device_count() if training.device.type == "cuda" else 0
    if gpus < 2:
        seen = "no GPU" if gpus == 0 else "one GPU"
        training.note(f"dp runs as a plain module: it splits a batch over GPUs, and this process trains on {seen}")
        training.fit(Alone(module, precision=training.precision))
    else:
        training.fit(Alone(nn.DataParallel(module), module=module, precision=training.precision))
