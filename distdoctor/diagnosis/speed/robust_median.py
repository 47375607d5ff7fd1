"""The middle of many measurements, and how far they scatter around it, by medians: one odd step moves neither."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Self

import numpy as np


@dataclass(frozen=True)
class RobustMedian:
    """Median and median absolute deviation, in the unit of what was measured; `count` 0: nothing was."""

    value: float = 0.0
    spread: float = 0.0
    count: int = 0

    @classmethod
    def of(cls, measured: Any) -> Self:
        """Of any numbers; those that are not finite are left out."""
        numbers = np.asarray(measured, float).reshape(-1)
        numbers = numbers[np.isfinite(numbers)]
        if not len(numbers):
            return cls()
        value = float(np.median(numbers))
        return cls(value, float(np.median(np.abs(numbers - value))), len(numbers))

    @property
    def error(self) -> float:
        """Standard error of the median of normal scatter: 1.2533 * 1.4826 deviations over the root of the count."""
        return 1.858 * self.spread / math.sqrt(self.count) if self.count else math.inf

    @property
    def stands_out(self) -> bool:
        """Whether it is more than scatter: at least three deviations above zero."""
        return self.count > 0 and self.value > 0 and self.value >= 3 * self.spread
