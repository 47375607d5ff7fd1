"""Tensor parallel: each layer is split over the ranks, which all read the same samples."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distdoctor.errors import WrongUse
from distdoctor.offers import Strategy
from distdoctor.workloads.request import TrainingRequest, refuse_offload, require_even_shares

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

TENSOR = Strategy(
    name="tensor",
    summary="parallelize_module: each layer split over the ranks",
    train="distdoctor_strategies.tensor:train",
)


def validate(request: TrainingRequest, world_size: int) -> None:
    refuse_offload(request)
    require_even_shares(request, 1)
    if request.precision == "fp16":
        raise WrongUse(
            "GradScaler does not unscale the mixture of split and whole gradients that tensor parallelism makes",
            way_out="Take --precision bf16, which needs no scaler.",
        )


def train(training: Training) -> None:
    """Split the layers that the model names over all ranks, and train."""
    from torch.distributed.device_mesh import init_device_mesh

    from distdoctor.workloads.shards import SplitWithin, split_layers

    model = training.make_model()
    split_layers(model, init_device_mesh(training.device.type, (training.world_size,), mesh_dim_names=("tensor",)))
    arrangement = SplitWithin(model, precision=training.precision)
    arrangement.counts = training.rank == 0  # all ranks have the same loss: one of them tells it
    training.fit(arrangement)
