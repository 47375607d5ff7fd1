"""Fully sharded data parallel (`fully_shard`): each rank keeps a shard of every parameter, gradient and optimizer state, and
gathers a block's parameters when it comes to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distdoctor.offers import Option, Strategy
from distdoctor.workloads.request import TrainingRequest, require_even_shares

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

FSDP = Strategy(
    name="fsdp",
    summary="fully_shard: parameters, gradients and optimizer state sharded over the ranks",
    train="distdoctor_strategies.fsdp:train",
    options=(
        Option(
            "reshard-after-forward",
            "Free a block's gathered parameters after forward and gather them again in backward: less memory, more traffic.",
            bool,
            True,
        ),
    ),
)


def validate(request: TrainingRequest, world_size: int) -> None:
    require_even_shares(request, world_size)


def train(training: Training) -> None:
    """Shard the model over all ranks and train; --precision becomes FSDP's mixed precision."""
    from torch.distributed.device_mesh import init_device_mesh

    from distdoctor.workloads.shards import Sharded, shard_fully

    model = training.make_model()
    shard_fully(
        model,
        init_device_mesh(training.device.type, (training.world_size,), mesh_dim_names=("shard",)),
        precision=training.precision,
        offload=training.request.offload,
        reshard_after_forward=training.option("reshard_after_forward"),
    )
    training.fit(Sharded(model, precision=training.precision).reading_share(training.rank, training.world_size))
