"""A forward allocates more memory than there is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from distdoctor.offers import Drill

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

OUT_OF_MEMORY = Drill(
    slug="out-of-memory",
    code="DD408",
    summary="rank 1 allocates 64 TiB in the forward of its fourth step",
    expect="DD408: rank 1 could not allocate memory in the forward",
    plant="distdoctor_drills.memory.out_of_memory:plant",
    ranks=(1,),
    strategies=("ddp", "fsdp"),
    needs_ranks=2,
)


def plant(training: Training) -> None:
    """Pair every value with every other, a million times."""
    if training.rank != 1:
        return
    usual = training.forward

    def forward(model: Any, inputs: Any) -> Any:
        if training.step == 3:
            inputs.new_empty(1 << 44)  # far more than any machine has
        return usual(model, inputs)

    training.replace("forward", forward)
