"""The gradients of one step of a reference training, whole and by name, for comparing one way of training with another.

Planted into a training like a drill; it writes `gradients-<rank>.pt` into the request's folder of results.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

PLANT = "distdoctor.workloads.baseline:plant"
SCALE = 1024.0


@dataclass(frozen=True)
class BaselineStep:
    """Gradients whole and by name, in float64. `rows`: targets of a batch; `noisy`: layers that look at whole batches."""

    gradients: Mapping[str, Tensor]
    rows: int = 1
    noisy: tuple[str, ...] = ()


def plant(training: Training) -> None:
    """Keep the gradients of the first step, as the optimizer is about to use them. Dropout is switched off."""

    def prepare(training: Training) -> None:
        # At its usual 65536 the first step would overflow, and be skipped; powers of two change no bits.
        training.scaler._init_scale = SCALE
        for module in training.arrangement.module.modules():
            if isinstance(module, nn.modules.dropout._DropoutNd):
                module.p = 0.0

    def keep(training: Training) -> None:
        if training.step == 0:
            # With GradScaler they are still multiplied by its scale here.
            scale = float(training.scaler.get_scale()) if training.scaler.is_enabled() else 1.0
            whole = {name: gradient.double().cpu() / scale for name, gradient in _gradients(training)}
            noisy = [
                name
                for name, module in training.arrangement.module.named_modules()
                if isinstance(module, nn.modules.batchnorm._BatchNorm)
            ]
            found = {"gradients": whole, "rows": training.targets.numel(), "noisy": noisy}
            torch.save(found, Path(training.request.result or ".") / f"gradients-{training.rank}.pt")

    training.on("training_start", prepare)
    training.on("before_optimizer_step", keep)


def _gradients(training: Training) -> list[tuple[str, Tensor]]:
    found = []
    for name, parameter in training.arrangement.module.named_parameters():
        gradient = parameter.grad
        if gradient is not None:
            found.append((name, gradient.full_tensor() if isinstance(gradient, DTensor) else gradient))
    return found


def read(folder: Path) -> BaselineStep:
    """The gradients of all ranks together; of what several ranks hold, the first rank's."""
    gradients: dict[str, Tensor] = {}
    rows, noisy = 1, dict[str, None]()
    for path in sorted(folder.glob("gradients-*.pt"), key=lambda path: int(path.stem.partition("-")[2])):
        found = torch.load(path, weights_only=True)
        rows = max(rows, found["rows"])
        noisy.update(dict.fromkeys(found["noisy"]))
        for name, gradient in found["gradients"].items():
            gradients.setdefault(name, gradient)
    return BaselineStep(gradients, rows, tuple(noisy))
