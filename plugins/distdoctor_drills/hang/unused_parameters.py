"""A part of the model does not contribute to the loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn

from distdoctor.offers import Drill

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

UNUSED_PARAMETERS = Drill(
    slug="unused-parameters",
    code="DD121",
    summary="a layer of the model is never called, and DistributedDataParallel waits for its gradients",
    expect="DD121: the names of the unused parameters",
    plant="distdoctor_drills.hang.unused_parameters:plant",
    ranks=(),
    strategies=("ddp",),
)


class WithSpare(nn.Sequential):
    """A model, and a layer that its forward leaves out."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.spare = nn.Linear(4, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self[0](inputs)
        return outputs


def plant(training: Training) -> None:
    """Keep a layer of an experiment that is over."""
    usual = training.make_model
    training.replace("make_model", lambda: WithSpare(usual()))
