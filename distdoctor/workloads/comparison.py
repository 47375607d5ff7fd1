"""Train one step twice, as a strategy does and in one process, on the same batch, and compare the gradients layer by layer.

Rounding explains a difference up to a bound; a constant factor beyond it is a wrong average, and is named as what it is.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from distdoctor.errors import CouldNotLook
from distdoctor.workloads.request import TrainingRequest

if TYPE_CHECKING:
    from torch import Tensor

UNIT_ROUNDOFF = {"fp32": 2.0**-24, "bf16": 2.0**-9, "fp16": 2.0**-11}
SAFETY = 8.0
"""Rounding errors behave like a random walk: with n terms the error stays below SAFETY * sqrt(n) * u except with a probability of
2 exp(-SAFETY^2 / 2), that is 10^-13 (Higham and Mary, A new approach to probabilistic rounding error analysis, 2019)."""
SMALL = 0.01  # a layer whose gradient is far smaller than the others' inherits their rounding errors
SECONDS = 300


@dataclass(frozen=True)
class Layer:
    """One parameter: the norms, how far apart relative to the baseline, what rounding allows, and the factor between them."""

    name: str
    norm: float
    baseline_norm: float
    error: float
    allowed: float
    factor: float

    @property
    def agrees(self) -> bool:
        return self.error <= self.allowed


@dataclass(frozen=True)
class Comparison:
    """All layers, and what is held by one side only."""

    layers: tuple[Layer, ...]
    missing: tuple[str, ...]
    terms: int
    precision: str
    ranks: int
    accumulate: int

    @property
    def agrees(self) -> bool:
        return not self.missing and all(layer.agrees for layer in self.layers)

    @property
    def factor(self) -> float | None:
        """The one factor that explains every layer that differs; None when there is none."""
        wrong = [layer.factor for layer in self.layers if not layer.agrees]
        if not wrong or max(wrong) - min(wrong) > 0.02 * abs(max(wrong)):
            return None
        return sum(wrong) / len(wrong)

    @property
    def likely(self) -> str:
        """What a factor stands for: `2 = the number of ranks`."""
        factor = self.factor
        if factor is None:
            return ""
        known = {
            float(self.ranks): f"{self.ranks}, the number of ranks: gradients are summed, not averaged",
            1 / self.ranks: f"1/{self.ranks}: gradients are divided by the number of ranks twice",
            float(self.accumulate): f"{self.accumulate}, the micro-steps: their losses are summed, not averaged",
            1 / self.accumulate: f"1/{self.accumulate}: the loss is divided by the micro-steps twice",
            -1.0: "-1: the sign is wrong",
        }
        near = [words for value, words in known.items() if value != 1 and math.isclose(factor, value, rel_tol=0.02)]
        return near[0] if near else f"{factor:.4g}"


def compare_with_single(request: TrainingRequest, ranks: int, single: str) -> Comparison:
    """Train one step both ways. `single` is the `train` of the strategy of one process.

    CouldNotLook: one of the two trainings failed.
    """
    one_step = replace(request, steps=1, epochs=1, evaluate=False, save=None, resume=None, result=None)
    alone = replace(one_step, strategy="single", train=single, options={}, drills=(), precision=None, accumulate=1)
    alone = replace(alone, offload=False, checkpoint_activations=False)
    found = _train(one_step, ranks)
    return compared(found, _train(alone, 1), one_step, ranks)


def compared(
    found: Mapping[str, Tensor], baseline: Mapping[str, Tensor], request: TrainingRequest, ranks: int
) -> Comparison:
    """The comparison of two sets of gradients by name."""
    precision = request.precision or ("fp16" if request.strategy == "amp" else "fp32")
    # The longest chain of additions: samples of the batch, and the inner dimension of every layer on the way.
    terms = request.batch_size + sum(gradient.shape[-1] for gradient in baseline.values() if gradient.dim() > 1)
    bound = SAFETY * math.sqrt(terms) * UNIT_ROUNDOFF[precision]
    whole = math.sqrt(sum(float(gradient.norm()) ** 2 for gradient in baseline.values()))
    layers = []
    for name, expected in baseline.items():
        gradient = found.get(name)
        if gradient is None or gradient.shape != expected.shape:
            continue
        size = float(expected.norm())
        scale = max(size, SMALL * whole) or 1.0
        factor = float((gradient * expected).sum()) / (size * size) if size else math.nan
        layers.append(
            Layer(name, float(gradient.norm()), size, float((gradient - expected).norm()) / scale, bound, factor)
        )
    missing = tuple(
        sorted(
            (found.keys() ^ baseline.keys())
            | {n for n in found.keys() & baseline.keys() if found[n].shape != baseline[n].shape}
        )
    )
    return Comparison(tuple(layers), missing, terms, precision, ranks, request.accumulate)


def _train(request: TrainingRequest, ranks: int) -> dict[str, Tensor]:
    from distdoctor.workloads import baseline

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "request.json"
        replace(request, drills=(*request.drills, baseline.PLANT)).write(path)
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        env = {**os.environ, baseline.FOLDER: folder, "DISTDOCTOR": "0"}
        done = subprocess.run(
            [*command, "-m", "distdoctor.workloads.train", str(path)],
            check=False,
            capture_output=True,
            text=True,
            env=env,
            timeout=SECONDS,
        )
        if done.returncode:
            raise CouldNotLook(
                f"the comparison could not be made: {request.strategy} on {ranks} ranks failed\n{done.stderr[-2000:]}",
                way_out=f"Try `distdoctor run --strategy {request.strategy} --nproc {ranks}` by itself.",
            )
        return baseline.read(Path(folder))


def table(comparison: Comparison) -> str:
    """The comparison as text, the worst layers first."""
    worst = sorted(comparison.layers, key=lambda layer: -layer.error / layer.allowed)
    lines = [_verdict(comparison)]
    rows = [("parameter", "|grad|", "|single|", "apart", "allowed", "factor", "")]
    rows += [
        (
            layer.name,
            f"{layer.norm:.4g}",
            f"{layer.baseline_norm:.4g}",
            f"{layer.error:.1e}",
            f"{layer.allowed:.1e}",
            f"{layer.factor:.5f}",
            "" if layer.agrees else "DIFFERS",
        )
        for layer in worst[:20]
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines += [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    if len(worst) > len(rows) - 1:
        lines.append(f"  and {len(worst) - len(rows) + 1} more")
    return "\n".join(lines) + "\n"


def _verdict(comparison: Comparison) -> str:
    held = f"{len(comparison.layers)} parameters, {comparison.precision}, {comparison.terms} terms"
    if comparison.agrees:
        return f"against single: the same gradients up to rounding ({held})"
    if comparison.missing:
        return f"against single: {_some(comparison.missing)} cannot be compared, only one side holds them ({held})"
    wrong = sum(not layer.agrees for layer in comparison.layers)
    if comparison.factor is not None and abs(comparison.factor - 1) > 0.01:
        return f"against single: {wrong} of {held} differ by the factor {comparison.likely}"
    return f"against single: {wrong} of {held} differ beyond rounding, by no common factor"


def _some(names: Iterable[str]) -> str:
    names = list(names)
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
