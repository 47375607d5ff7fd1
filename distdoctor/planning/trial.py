"""One remedy on one reference training: predicted without and with it, then trained without and with it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass

from distdoctor.diagnosis.memory.memory import mib
from distdoctor.planning import real_steps
from distdoctor.planning.prediction import predict
from distdoctor.workloads.request import TrainingRequest

CLOSE = 0.10
"""The predicted effect has to be within this share of the measured one."""
SMALL = 0.01
"""Of the peak, or of what is sent: gloo's threads give buffers back a little earlier or later, and a smaller effect drowns in
that. It is not called verified."""
STEPS = 8
APART = 3.0
"""Median absolute deviations by which steps have to differ before one of them is called faster."""


@dataclass(frozen=True)
class MeasuredTrial:
    """Bytes on the rank that needs most, and seconds of a step; seconds are only measured, under a profiler that takes some."""

    remedy: str
    ranks: int
    predicted_without: int
    predicted_with: int
    measured_without: int
    measured_with: int
    seconds_without: float
    seconds_with: float
    scatter_seconds: float
    """How far the steps of one run are from its median, in the median, in the run where that is more."""
    predicted_sent_without: int
    predicted_sent_with: int
    measured_sent_without: int
    measured_sent_with: int
    recomputed_flops: int

    @property
    def predicted_saving(self) -> int:
        return self.predicted_without - self.predicted_with

    @property
    def measured_saving(self) -> int:
        return self.measured_without - self.measured_with

    @property
    def predicted_unsent(self) -> int:
        """Bytes that are not sent any more."""
        return self.predicted_sent_without - self.predicted_sent_with

    @property
    def measured_unsent(self) -> int:
        return self.measured_sent_without - self.measured_sent_with

    @property
    def changes_memory(self) -> bool:
        """The measured effect on the peak is more than noise."""
        return abs(self.measured_saving) > SMALL * self.measured_without

    @property
    def changes_traffic(self) -> bool:
        """The measured effect on what is sent is more than noise."""
        return abs(self.measured_unsent) > SMALL * max(self.measured_sent_without, 1)

    @property
    def as_predicted(self) -> bool:
        """The re-run showed nothing else than was predicted, as far as it can be told from noise."""
        return _close(self.predicted_saving, self.measured_saving, self.measured_without) and _close(
            self.predicted_unsent, self.measured_unsent, self.measured_sent_without
        )

    @property
    def verified(self) -> bool:
        """The re-run showed an effect, and the one that was predicted."""
        return self.as_predicted and (self.changes_memory or self.changes_traffic)

    @property
    def verdict(self) -> str:
        """`verified`, `too small to tell`, or `not as predicted`."""
        if self.verified:
            return "verified"
        return "too small to tell" if self.as_predicted else "not as predicted"


def _close(predicted: int, measured: int, whole: int) -> bool:
    return abs(predicted - measured) <= max(
        CLOSE * abs(measured), SMALL * whole if abs(measured) <= SMALL * whole else 0
    )


def try_remedy(
    slug: str,
    without: TrainingRequest,
    cured: TrainingRequest,
    ranks: int,
    *,
    device: str = "cpu",
    tell: Callable[[str], None] = lambda _: None,
) -> MeasuredTrial:
    """Train both, a few steps each.

    CouldNotLook: one of them cannot be predicted, or fails.
    """
    tell(f"predicting {slug}")
    before, after = (predict(request, ranks, device=device) for request in (without, cured))
    plain, other = (_trained(request, ranks, words, tell) for request, words in ((without, "without"), (cured, "with")))
    return MeasuredTrial(
        slug,
        ranks,
        before.total_bytes,
        after.total_bytes,
        plain.peak_bytes,
        other.peak_bytes,
        plain.step_seconds,
        other.step_seconds,
        max(plain.scatter_seconds, other.scatter_seconds),
        before.sent_bytes,
        after.sent_bytes,
        plain.sent_bytes,
        other.sent_bytes,
        max(0, after.flops - before.flops),
    )


def _trained(request: TrainingRequest, ranks: int, words: str, tell: Callable[[str], None]) -> real_steps.RealSteps:
    tell(f"training {STEPS} steps {words} it on {_ranks(ranks)}")
    return real_steps.train(request, ranks, "distdoctor.planning.measured_memory:plant", steps=STEPS)


def render(trial: MeasuredTrial) -> str:
    """The verdict first, then the numbers."""
    rows = [
        ("", "without", "with", "difference"),
        _sizes("predicted peak", trial.predicted_without, trial.predicted_with),
        _sizes("measured peak", trial.measured_without, trial.measured_with),
        _sizes("predicted to be sent", trial.predicted_sent_without, trial.predicted_sent_with),
        _sizes("measured to be sent", trial.measured_sent_without, trial.measured_sent_with),
        ("seconds per step", f"{trial.seconds_without:.4f}", f"{trial.seconds_with:.4f}", _faster(trial)),
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = [f"{trial.remedy}, on {_ranks(trial.ranks)}: {_effect(trial)} ({trial.verdict})"]
    lines += [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    if trial.recomputed_flops:
        lines.append(f"  computed again: {trial.recomputed_flops:.3g} floating point operations per step and rank")
    if trial.verdict == "too small to tell":
        lines.append(
            f"  less than {SMALL:.0%} of the peak and of what is sent: this training is not bound by what it changes"
        )
    return "\n".join(lines) + "\n"


def _effect(trial: MeasuredTrial) -> str:
    saved, unsent = trial.measured_saving, trial.measured_unsent
    found = []
    if trial.changes_memory or not (trial.as_predicted or trial.changes_traffic):
        verb = "saves" if saved >= 0 else "costs"
        found.append(f"{verb} {mib(abs(saved))} of {mib(trial.measured_without)} per rank")
    if trial.changes_traffic:
        words = "less" if unsent >= 0 else "more"
        found.append(f"sends {mib(abs(unsent))} {words} in a step, where {mib(trial.measured_sent_without)} were sent")
    return " and ".join(found) or f"changes nothing to speak of in {mib(trial.measured_without)} per rank"


def _sizes(name: str, without: int, cured: int) -> tuple[str, str, str, str]:
    return name, mib(without), mib(cured), mib(cured - without)


def _faster(trial: MeasuredTrial) -> str:
    difference = trial.seconds_with - trial.seconds_without
    if abs(difference) < APART * trial.scatter_seconds:
        return f"within the scatter of the steps (+-{trial.scatter_seconds:.4f})"
    return f"{difference:+.4f}, steps scatter by {trial.scatter_seconds:.4f}"


def _ranks(ranks: int) -> str:
    return f"{ranks} rank{'s' if ranks > 1 else ''}"


def to_json(trial: MeasuredTrial) -> str:
    """One document, sizes in bytes."""
    derived = {
        "predicted_saving": trial.predicted_saving,
        "measured_saving": trial.measured_saving,
        "verified": trial.verified,
        "verdict": trial.verdict,
    }
    return json.dumps({"schema_version": 1, **asdict(trial), **derived}, indent=1) + "\n"
