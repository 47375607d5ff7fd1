"""A large heap that the garbage collector walks in different steps on each rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distdoctor.offers import Drill

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

UNSYNCHRONISED_GC = Drill(
    slug="unsynchronised-gc",
    code="DD512",
    summary="each rank collects garbage over 600,000 objects in its own steps",
    expect="DD512: garbage collection stops different ranks in different steps",
    plant="distdoctor_drills.speed.unsynchronised_gc:plant",
    ranks=(),
    strategies=("ddp", "amp"),
    arguments={"steps": 40},
)


def plant(training: Training) -> None:
    """Collect in each sixth step, three steps apart on each other rank."""
    import gc

    heap: list[list[int]] = []
    made = 0

    def fill(training: Training) -> None:
        heap.extend([number] for number in range(600_000))
        gc.disable()

    def collect(training: Training) -> None:
        nonlocal made
        made += 1
        if (made + 3 * training.rank) % 6 == 0:
            gc.collect()

    training.on("training_start", fill)
    training.on("before_optimizer_step", collect)
