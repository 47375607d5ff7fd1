"""A GradScaler is created under its old name."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import torch

from distdoctor.offers import Drill

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

REMOVED_OR_DEPRECATED_API = Drill(
    slug="removed-or-deprecated-api",
    code="DD804",
    summary="the training creates a torch.cuda.amp.GradScaler",
    expect='DD804: torch.cuda.amp.GradScaler is deprecated; use torch.amp.GradScaler("cuda")',
    plant="distdoctor_drills.numerics.removed_or_deprecated_api:plant",
    ranks=(),
    arguments={"steps": 20},
)


def plant(training: Training) -> None:
    """As examples of five years ago do."""

    def make(training: Training) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.cuda.amp.GradScaler(enabled=False)

    training.on("training_start", make)
