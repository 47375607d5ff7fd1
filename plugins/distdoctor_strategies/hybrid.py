"""Hybrid: several ways of splitting over the axes of one device mesh. HSDP (replicate x shard), FSDP x tensor, or all three."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from distdoctor.errors import WrongUse
from distdoctor.offers import Option, Strategy
from distdoctor.workloads.request import TrainingRequest, require_even_shares

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

AXES = ("replicate", "shard", "tensor")

HYBRID = Strategy(
    name="hybrid",
    summary="HSDP or FSDP x tensor parallel over the axes of one mesh",
    train="distdoctor_strategies.hybrid:train",
    options=(
        Option(
            "mesh",
            "Ranks along each axis, such as replicate=2,shard=2 (HSDP) or shard=2,tensor=2 (FSDP x tensor); "
            "by default pairs of shards, replicated.",
        ),
        Option("reshard-after-forward", "Free a block's gathered parameters after forward.", bool, True),
    ),
)


def mesh_of(text: str | None, world_size: int) -> dict[str, int]:
    """The size of each axis, in the order of `AXES`."""
    if text is None:
        return {"replicate": world_size // 2, "shard": 2} if world_size % 2 == 0 else {"shard": world_size}
    try:
        sizes = {name.strip(): int(size) for name, size in (part.split("=") for part in text.split(","))}
    except ValueError:
        sizes = {}
    if not sizes or sizes.keys() - set(AXES) or min(sizes.values()) < 1:
        raise WrongUse(
            f"--mesh {text} is not a mesh",
            way_out=f"Write it like shard=2,tensor=2, with axes out of {', '.join(AXES)}.",
        )
    if prod(sizes.values()) != world_size:
        factors = " x ".join(str(size) for size in sizes.values())
        raise WrongUse(
            f"--mesh {text} has {factors} = {prod(sizes.values())} places for {world_size} ranks",
            way_out="Make the product of the axes the number of ranks.",
        )
    sizes.setdefault("shard", 1)
    return {axis: sizes[axis] for axis in AXES if axis in sizes}


def validate(request: TrainingRequest, world_size: int) -> None:
    mesh = mesh_of(request.options["mesh"], world_size)
    require_even_shares(request, world_size // mesh.get("tensor", 1))
    if "tensor" in mesh and request.precision == "fp16":
        raise WrongUse(
            "GradScaler does not unscale the mixture of meshes that FSDP x tensor makes",
            way_out="Take --precision bf16, which needs no scaler.",
        )


def train(training: Training) -> None:
    """Split the layers over the tensor axis if there is one, shard over the shard axis, replicate over the rest."""
    from torch.distributed.device_mesh import init_device_mesh

    from distdoctor.workloads.shards import Sharded, shard_fully, split_layers

    sizes = mesh_of(training.option("mesh"), training.world_size)
    mesh = init_device_mesh(training.device.type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))
    model = training.make_model()
    tensor_ranks = sizes.get("tensor", 1)
    if "tensor" in sizes:
        split_layers(model, mesh["tensor"])
    shard_fully(
        model,
        mesh["replicate", "shard"] if "replicate" in sizes else mesh["shard"],
        precision=training.precision,
        offload=training.request.offload,
        reshard_after_forward=training.option("reshard_after_forward"),
    )
    # The tensor axis is the last one: neighbouring ranks read the same samples.
    arrangement = Sharded(model, precision=training.precision)
    arrangement.counts = training.rank % tensor_ranks == 0
    training.fit(arrangement.reading_share(training.rank // tensor_ranks, training.world_size // tensor_ranks))
