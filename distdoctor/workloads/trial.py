"""One remedy on one reference training: predicted without and with it, then trained without and with it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass

from distdoctor.diagnosis.memory import mib
from distdoctor.workloads import real_steps
from distdoctor.workloads.prediction import predict
from distdoctor.workloads.request import TrainingRequest

CLOSE = 0.10
"""The predicted saving has to be within this share of the measured one, or"""
NOISE = 0.03
"""within this share of the peak: gloo's threads give their buffers back a little later than the operation ends."""


@dataclass(frozen=True)
class Trial:
    """Peaks in bytes of the rank that needs most, seconds of a step; `predicted_seconds` are not: speed is only measured."""

    remedy: str
    ranks: int
    predicted_without: int
    predicted_with: int
    measured_without: int
    measured_with: int
    seconds_without: float
    seconds_with: float
    sent_without: int
    sent_with: int
    recomputed_flops: int

    @property
    def predicted_saving(self) -> int:
        return self.predicted_without - self.predicted_with

    @property
    def measured_saving(self) -> int:
        return self.measured_without - self.measured_with

    @property
    def verified(self) -> bool:
        """The re-run showed what was predicted."""
        apart = abs(self.predicted_saving - self.measured_saving)
        return apart <= max(CLOSE * abs(self.measured_saving), NOISE * self.measured_without)


def try_remedy(
    slug: str,
    without: TrainingRequest,
    cured: TrainingRequest,
    ranks: int,
    *,
    device: str = "cpu",
    tell: Callable[[str], None] = lambda _: None,
) -> Trial:
    """Train both, a few steps each.

    CouldNotLook: one of them cannot be predicted, or fails.
    """
    tell(f"predicting {slug}")
    before, after = (predict(request, ranks, device=device) for request in (without, cured))
    measured = []
    for request, words in ((without, "without"), (cured, "with")):
        tell(f"training {real_steps.STEPS} steps {words} {slug} on {ranks} rank{'s' if ranks > 1 else ''}")
        measured.append(real_steps.train(request, ranks, "distdoctor.workloads.measured_memory:plant"))
    return Trial(
        slug,
        ranks,
        before.total_bytes,
        after.total_bytes,
        measured[0].peak_bytes,
        measured[1].peak_bytes,
        measured[0].step_seconds,
        measured[1].step_seconds,
        before.sent_bytes,
        after.sent_bytes,
        max(0, after.flops - before.flops),
    )


def render(trial: Trial) -> str:
    """The verdict first, then the numbers."""
    state = "verified" if trial.verified else "not as predicted"
    saved = trial.measured_saving
    verb = f"saves {mib(saved)}" if saved >= 0 else f"costs {mib(-saved)}"
    rows = [
        ("", "without", "with", "difference"),
        ("predicted peak", mib(trial.predicted_without), mib(trial.predicted_with), mib(-trial.predicted_saving)),
        ("measured peak", mib(trial.measured_without), mib(trial.measured_with), mib(-saved)),
        (
            "seconds per step",
            f"{trial.seconds_without:.4f}",
            f"{trial.seconds_with:.4f}",
            f"{trial.seconds_with - trial.seconds_without:+.4f}",
        ),
        ("sent per step", mib(trial.sent_without), mib(trial.sent_with), mib(trial.sent_with - trial.sent_without)),
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = [f"{trial.remedy} {verb} of {mib(trial.measured_without)} per rank on {trial.ranks} ranks ({state})"]
    lines += [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    if trial.recomputed_flops:
        lines.append(f"  computed again: {trial.recomputed_flops:.3g} floating point operations per step and rank")
    return "\n".join(lines) + "\n"


def to_json(trial: Trial) -> str:
    """One document, sizes in bytes."""
    derived = {
        "predicted_saving": trial.predicted_saving,
        "measured_saving": trial.measured_saving,
        "verified": trial.verified,
    }
    return json.dumps({"schema_version": 1, **asdict(trial), **derived}, indent=1) + "\n"
