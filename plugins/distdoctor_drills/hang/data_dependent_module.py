"""One rank does not run a sharded module in one step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from distdoctor.offers import Drill

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

DATA_DEPENDENT_MODULE = Drill(
    slug="data-dependent-module",
    code="DD128",
    summary="rank 1 has no image in step 3 and does not run the sharded adapter",
    expect="DD128: the sharded adapter ran only on the ranks that have an image",
    plant="distdoctor_drills.hang.data_dependent_module:plant",
    ranks=(1,),
    strategies=("fsdp",),
)


def plant(training: Training) -> None:
    """An adapter beside the model, run on what the batch brings."""
    # not above: it takes half a second, and whoever asks for the list of drills would wait for it
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    adapter = torch.nn.Linear(4, 4).to(training.device)
    mesh = init_device_mesh(training.device.type, (training.world_size,))
    fully_shard(adapter, mesh=mesh, reshard_after_forward=True)  # a root keeps its parameters otherwise

    def adapt(training: Training) -> None:
        image = None if training.rank == 1 and training.step == 3 else torch.ones(2, 4, device=training.device)
        if image is not None:
            adapter(image)

    training.on("after_step", adapt)
