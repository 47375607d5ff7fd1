"""Every loss is added to a total, along with its graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from distdoctor.offers import Drill

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

GROWING_MEMORY = Drill(
    slug="growing-memory",
    code="DD401",
    summary="the losses of all steps are added up along with their graphs",
    expect="DD401: the total keeps the graph of every step",
    plant="distdoctor_drills.memory.growing_memory:plant",
    strategies=("ddp", "fsdp", "single"),
    needs_ranks=2,
)


class Total:
    """What an ordinary loop has in a variable."""

    def __init__(self) -> None:
        self.loss: Any = 0.0

    def add(self, loss: Any) -> None:
        self.loss += loss  # with its graph


def plant(training: Training) -> None:
    """Add up the losses as they come."""
    total, usual = Total(), training.backward

    def backward(loss: Any) -> None:
        usual(loss)
        total.add(loss)

    training.replace("backward", backward)
