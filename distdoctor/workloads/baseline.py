"""The gradients of one step of a reference training, whole and by name, for comparing one way of training with another.

Planted into a training like a drill; it writes `gradients-<rank>.pt` into the folder that DISTDOCTOR_GRADIENTS names.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

FOLDER = "DISTDOCTOR_GRADIENTS"
PLANT = "distdoctor.workloads.baseline:plant"


def plant(training: Training) -> None:
    """Keep the gradients of the first step, as the optimizer is about to use them."""

    def keep(training: Training) -> None:
        if training.step == 0:
            # With GradScaler they are still multiplied by its scale here.
            scale = float(training.scaler.get_scale()) if training.scaler.is_enabled() else 1.0
            whole = {name: gradient.double().cpu() / scale for name, gradient in _gradients(training)}
            torch.save(whole, Path(os.environ[FOLDER]) / f"gradients-{training.rank}.pt")

    training.on("before_optimizer_step", keep)


def _gradients(training: Training) -> list[tuple[str, Tensor]]:
    found = []
    for name, parameter in training.arrangement.module.named_parameters():
        gradient = parameter.grad
        if gradient is not None:
            found.append((name, gradient.full_tensor() if isinstance(gradient, DTensor) else gradient))
    return found


def read(folder: Path) -> dict[str, Tensor]:
    """The gradients of all ranks together; of what several ranks hold, the first rank's."""
    found: dict[str, Tensor] = {}
    for path in sorted(folder.glob("gradients-*.pt"), key=lambda path: int(path.stem.partition("-")[2])):
        for name, gradient in torch.load(path, weights_only=True).items():
            found.setdefault(name, gradient)
    return found
