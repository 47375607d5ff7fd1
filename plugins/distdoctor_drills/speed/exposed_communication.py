"""A whole embedding table is averaged when nothing is left to compute."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from distdoctor.offers import Drill

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

ROWS = 150_000

EXPOSED_COMMUNICATION = Drill(
    slug="exposed-communication",
    code="DD505",
    summary="a 37 MiB embedding table comes before the model, and all of its gradients are reduced in each step",
    expect="DD505: a good part of each step goes into averaging gradients after backward has computed everything",
    plant="distdoctor_drills.speed.exposed_communication:plant",
    ranks=(0, 1),
    strategies=("ddp",),
    arguments={"steps": 40, "optimizer": "sgd"},
)


class WithTable(nn.Module):
    """A vector for each sample, looked up by where its largest value is, is added to what the model reads."""

    def __init__(self, model: nn.Module, features: int) -> None:
        super().__init__()
        self.table = nn.Embedding(ROWS, features)  # its gradient is dense, and the last to be ready
        self.model = model

    def forward(self, inputs: Tensor) -> Any:
        looked_up = self.table(inputs.flatten(1).argmax(1))
        return self.model(inputs + 0.01 * looked_up.view_as(inputs))


def plant(training: Training) -> None:
    """Put the table before the model."""
    usual = training.make_model

    def make_model() -> nn.Module:
        inputs = training.train_set[0][0]
        return WithTable(usual(), inputs.numel()).to(training.device)

    training.replace("make_model", make_model)
