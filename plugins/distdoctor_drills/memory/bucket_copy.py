"""DistributedDataParallel keeps a second copy of all gradients in its buckets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from distdoctor.offers import Drill

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

HIDDEN = 5120

BUCKET_COPY = Drill(
    slug="bucket-copy",
    code="DD412",
    summary="100 MiB of gradients are not views of DistributedDataParallel's buckets",
    expect="DD412: the buckets stay allocated through the forward, as large as all gradients together",
    plant="distdoctor_drills.memory.bucket_copy:plant",
    ranks=(0, 1),
    strategies=("ddp",),
    arguments={"steps": 6, "optimizer": "sgd", "gradient_as_bucket_view": False},
    deep="memory",
)


class Widened(nn.Module):
    """A large hidden layer before the model: something to keep gradients of."""

    def __init__(self, model: nn.Module, features: int) -> None:
        super().__init__()
        self.widen = nn.Linear(features, HIDDEN)
        self.hidden = nn.Linear(HIDDEN, HIDDEN)
        self.narrow = nn.Linear(HIDDEN, features)
        self.model = model

    def forward(self, inputs: Tensor) -> Any:
        hidden = self.hidden(self.widen(inputs.flatten(1)).relu()).relu()
        return self.model(inputs + self.narrow(hidden).view_as(inputs))


def plant(training: Training) -> None:
    """A model that is large enough for its buckets to matter; the strategy's own option does the rest."""
    usual = training.make_model

    def make_model() -> nn.Module:
        inputs = training.train_set[0][0]
        return Widened(usual(), inputs.numel()).to(training.device)

    training.replace("make_model", make_model)
