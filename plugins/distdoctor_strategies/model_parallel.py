"""Model parallel by hand: parts of the model on different devices, one of which computes at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distdoctor.offers import Strategy
from distdoctor.workloads.request import TrainingRequest, refuse_offload, require_even_shares

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

MODEL_PARALLEL = Strategy(
    name="model-parallel",
    summary="the model cut by hand: over ranks with send and recv, or over the GPUs of one process",
    train="distdoctor_strategies.model_parallel:train",
)


def validate(request: TrainingRequest, world_size: int) -> None:
    refuse_offload(request)
    require_even_shares(request, 1)


def parts(request: TrainingRequest, world_size: int) -> int:
    """One per rank; a single process looks at its own GPUs."""
    return world_size if world_size > 1 else 0


def train(training: Training) -> None:
    """Cut the model into one part per rank; in a single process into one part per GPU."""
    import torch

    from distdoctor.workloads.arrangement import Alone
    from distdoctor.workloads.blocks import cut
    from distdoctor.workloads.parts import OverDevices, PartPerRank

    model = training.make_model()
    if training.world_size > 1:
        pieces = cut(model, training.world_size, purpose="--strategy model-parallel")
        training.fit(PartPerRank(training, pieces))
        return
    gpus = torch.cuda.device_count() if training.device.type == "cuda" else 0
    if gpus < 2:
        training.note(
            "model-parallel trains the model in one piece: there is one rank, and not two GPUs to put parts on"
        )
        training.fit(Alone(model, precision=training.precision))
        return
    pieces = cut(model, gpus, purpose="--strategy model-parallel")
    devices = [torch.device("cuda", index) for index in range(gpus)]
    training.fit(Alone(OverDevices(pieces, devices), module=model, precision=training.precision))
