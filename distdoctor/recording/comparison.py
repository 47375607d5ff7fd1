"""A strategy's gradients beside those of one process on the same batch, as `check-grads --against single` has measured them."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from distdoctor.errors import UnreadableRecording
from distdoctor.recording.files import LARGEST_JSON, read_json

FILE = "comparison.json"  # in the run folder
NEAR = 0.02  # how far from a known factor one may be, relative
Count = Annotated[int, msgspec.Meta(ge=1, le=1 << 32)]


@dataclass(frozen=True)
class Layer:
    """One parameter: L2 norms, how far apart relative to the baseline, what rounding allows, and the factor between them.

    `factor` is the one that brings the baseline nearest to what was found; NaN where the baseline is all zeros.
    """

    name: str
    norm: float
    baseline_norm: float
    error: float
    allowed: Annotated[float, msgspec.Meta(gt=0)]
    factor: float

    @property
    def agrees(self) -> bool:
        return self.error <= self.allowed


@dataclass(frozen=True)
class Comparison:
    """All layers, and what is held by one side only.

    `terms` is the longest chain of additions, `baseline` what was compared with: `single`, or the strategy itself on one rank,
    where its 16-bit arithmetic is its own. `noisy` names layers that make a step depend on how a batch is divided (batch
    normalisation).
    """

    layers: tuple[Layer, ...]
    missing: tuple[str, ...]
    terms: int
    precision: str
    ranks: Count
    accumulate: Count
    strategy: str = ""
    baseline: str = "single"
    noisy: tuple[str, ...] = ()

    @property
    def agrees(self) -> bool:
        return not self.missing and all(layer.agrees for layer in self.layers)

    @property
    def different(self) -> tuple[Layer, ...]:
        """The layers beyond rounding, the worst first."""
        wrong = (layer for layer in self.layers if not layer.agrees)
        return tuple(sorted(wrong, key=lambda layer: -layer.error / layer.allowed))

    @property
    def factor(self) -> float | None:
        """The one factor that explains every layer that differs; None when there is none."""
        wrong = [layer.factor for layer in self.different if math.isfinite(layer.factor)]
        if not wrong or len(wrong) < len(self.different) or max(wrong) - min(wrong) > NEAR * max(map(abs, wrong)):
            return None
        return sum(wrong) / len(wrong)

    @property
    def likely(self) -> str:
        """What a factor stands for: `2, the number of ranks: gradients are summed, not averaged`; "" without one."""
        factor = self.factor
        if factor is None:
            return ""
        known = {
            float(self.ranks): f"{self.ranks}, the number of ranks: gradients are summed, not averaged",
            1 / self.ranks: f"1/{self.ranks}: gradients are divided by the number of ranks twice",
            float(self.accumulate): f"{self.accumulate}, the micro-batches: their losses are summed, not averaged",
            1 / self.accumulate: f"1/{self.accumulate}: the loss is divided by the micro-batches twice",
            float(
                self.ranks * self.accumulate
            ): f"{self.ranks * self.accumulate}: nothing is divided by ranks and micro-batches",
            -1.0: "-1: the sign is wrong",
        }
        near = [words for value, words in known.items() if value != 1 and math.isclose(factor, value, rel_tol=NEAR)]
        return near[0] if near else f"{factor:.4g}"

    def write(self, folder: Path) -> None:
        """Keep it in a run folder."""
        (folder / FILE).write_text(json.dumps(asdict(self), indent=1), encoding="utf-8")


def read_comparison(folder: Path) -> Comparison | None:
    """What was compared in this run, None when nothing was (or the file is torn)."""
    try:
        fields = read_json(folder / FILE, LARGEST_JSON)
        return msgspec.convert(fields, Comparison)
    except (UnreadableRecording, msgspec.ValidationError):
        return None
