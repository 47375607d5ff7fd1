"""Backward retains the graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from distdoctor.offers import Drill

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

RETAINED_GRAPH = Drill(
    slug="retained-graph",
    code="DD410",
    summary="backward is called with retain_graph=True, with no second backward",
    expect="DD410: the graph of the loss outlives its step",
    plant="distdoctor_drills.memory.retained_graph:plant",
    ranks=(0, 1),
    strategies=("ddp",),
    arguments={"epochs": 13, "batch_size": 512},
)


def plant(training: Training) -> None:
    """Keep the graph, "in case"."""

    def backward(loss: Any) -> None:
        training.scaler.scale(loss).backward(retain_graph=True)

    training.replace("backward", backward)
