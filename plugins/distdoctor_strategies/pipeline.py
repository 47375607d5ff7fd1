"""Pipeline parallel: the model is cut into stages, one or two per rank, and micro-batches flow through them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distdoctor.errors import WrongUse
from distdoctor.offers import Option, Strategy
from distdoctor.workloads.request import TrainingRequest, refuse_offload, require_even_shares

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

PIPELINE = Strategy(
    name="pipeline",
    summary="torch.distributed.pipelining: stages over the ranks, micro-batches through them",
    train="distdoctor_strategies.pipeline:train",
    options=(
        Option("schedule", "Which stage works when.", str, "1f1b", ("gpipe", "1f1b", "interleaved")),
        Option("micro-batches", "Into how many pieces a batch is cut.", int, 4),
    ),
)


def validate(request: TrainingRequest, world_size: int) -> None:
    refuse_offload(request)
    require_even_shares(request, 1)
    pieces = request.options["micro_batches"]
    batch = request.batch_size // request.accumulate
    if pieces < 1 or batch % pieces:
        raise WrongUse(
            f"a batch of {batch} samples does not divide into {pieces} micro-batches",
            way_out="Take a --micro-batches that divides --batch-size / --accumulate.",
        )
    schedule = request.options["schedule"]
    if schedule != "gpipe" and pieces < world_size:
        raise WrongUse(
            f"schedule {schedule} keeps {world_size} stages busy, and there are only {pieces} micro-batches",
            way_out=f"Take --micro-batches {world_size} or more, or --schedule gpipe.",
        )
    if schedule == "interleaved" and world_size == 1:
        raise WrongUse(
            "schedule interleaved gives each of several ranks two stages, and there is one rank",
            way_out="Start two ranks or more, or take --schedule 1f1b.",
        )
    if schedule == "interleaved" and pieces % world_size:
        raise WrongUse(
            f"schedule interleaved works in rounds of {world_size} micro-batches, and {pieces} is no multiple of that",
            way_out=f"Take a multiple of {world_size} for --micro-batches.",
        )


def parts(request: TrainingRequest, world_size: int) -> int:
    """How many stages there are: one per rank, two for `interleaved`."""
    return world_size * (2 if request.options["schedule"] == "interleaved" else 1)


def train(training: Training) -> None:
    """Cut the model into one stage per rank (two for `interleaved`), and train."""
    from distdoctor.workloads.blocks import cut
    from distdoctor.workloads.stages import Pipeline

    schedule = training.option("schedule")
    pieces = cut(training.make_model(), parts(training.request, training.world_size), purpose="--strategy pipeline")
    training.fit(Pipeline(training, pieces, schedule=schedule, micro_batches=training.option("micro_batches")))
