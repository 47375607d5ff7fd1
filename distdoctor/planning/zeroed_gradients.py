"""A training that fills its gradients with zeros instead of giving their memory back: `zero_grad(set_to_none=False)`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

PLANT = "distdoctor.planning.zeroed_gradients:plant"


def plant(training: Training) -> None:
    """Keep the gradients' memory from step to step."""
    training.replace("zero_grad", lambda optimizer: optimizer.zero_grad(set_to_none=False))
