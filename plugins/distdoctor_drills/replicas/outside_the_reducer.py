"""The model is cast there and back after wrapping, and loses the hooks of its wrapper."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distdoctor.offers import Drill

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

OUTSIDE_THE_REDUCER = Drill(
    slug="outside-the-reducer",
    code="DD219",
    summary="the wrapped model is cast to double and back before the first step",
    expect="DD219: the wrapper does not average the gradients, because the model was moved or cast after wrapping",
    plant="distdoctor_drills.replicas.outside_the_reducer:plant",
    ranks=(),
    strategies=("ddp",),
)


def plant(training: Training) -> None:
    """A round trip that looks harmless."""

    def convert(training: Training) -> None:
        training.arrangement.model.double()
        training.arrangement.model.float()

    training.on("training_start", convert)
