"""
DD213 differs-from-baseline: a strategy's gradients differ from those that a single process computes from the same batch.

What it means    `check-grads --against single` trained one step both ways and compared every layer. Some layers differ by more
                 than rounding: a wrong average, a wrong loss, or a broken device or library.
Why it hurts     Every later comparison of loss curves rests on wrong gradients.
How we know      Each parameter's gradient is compared with the baseline's, within a bound from the arithmetic: unit roundoff,
                 the number of terms in the longest sum, the number of 16-bit roundings. A factor common to all layers is named.
What to do       Correct the factor where it arises: the reduction, the accumulation or the loss. Without a common factor, check
                 the first layer that differs, and run the same training on other hardware.
When it is fine  Batch normalization over each rank's share of the batch: a note (SyncBatchNorm would agree). Dropout is off
                 here.
Source           Higham and Mary, A new approach to probabilistic rounding error analysis, 2019.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Self

from distdoctor.diagnosis.check import NotApplicable, check
from distdoctor.diagnosis.finding import CERTAIN, ERROR, LIKELY, NOTE, Finding, Prescription
from distdoctor.recording.comparison import Comparison, Layer
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Recording, SourceLine


@dataclass(frozen=True)
class AgainstBaseline:
    """The comparison, and a line of the training that was compared."""

    streams: ClassVar[frozenset[str]] = frozenset()
    comparison: Comparison
    line: SourceLine

    @classmethod
    def of(cls, recording: Recording) -> Self:
        if recording.comparison is None:
            raise NotApplicable("no gradients were compared with a baseline (check-grads --against single)")
        rows = (log.site(row["site"]) for log in recording.ranks.values() for row in log.rows("updates")[-1:])
        return cls(recording.comparison, next((site for site in rows if site), SourceLine()))


@check("DD213", "differs-from-baseline", severity=ERROR, live=False, stands_alone=True)
def examine(against: AgainstBaseline) -> Iterator[Finding]:
    comparison = against.comparison
    if not comparison.agrees:
        yield _finding(comparison, against.line)


def _finding(comparison: Comparison, line: SourceLine) -> Finding:
    different, factor = comparison.different, comparison.factor
    by_batch = bool(comparison.noisy) and factor is None and not comparison.missing
    return Finding(
        title=_title(comparison, by_batch=by_batch),
        ranks=tuple(range(comparison.ranks)),
        place=line,
        evidence={
            "baseline": comparison.baseline,
            "precision": comparison.precision,
            "layers": [layer.name for layer in different[:8]],
            "relative_errors": [float(f"{layer.error:.3g}") for layer in different[:8]],
            "allowed": [float(f"{layer.allowed:.3g}") for layer in different[:8]],
            "different": len(different),
            "compared": len(comparison.layers),
            "missing": list(comparison.missing[:8]),
            "factor": factor,
            "likely": comparison.likely,
        },
        why=_why(comparison, by_batch=by_batch),
        prescriptions=(_cure(factor, by_batch=by_batch),),
        severity=NOTE if by_batch else ERROR,
        confidence=LIKELY if by_batch else CERTAIN,
    )


def _cure(factor: float | None, *, by_batch: bool) -> Prescription:
    if by_batch:
        return Prescription("normalise-the-whole-batch")
    return Prescription(
        "match-the-baseline", effect=f"gradients change by the factor {1 / factor:.4g}" if factor else ""
    )


def _title(comparison: Comparison, *, by_batch: bool) -> str:
    what = f"{comparison.strategy or 'the training'} on {named(range(comparison.ranks))}"
    if comparison.missing:
        more = f" and {len(comparison.missing) - 1} more" if len(comparison.missing) > 1 else ""
        return f"{what}: only one side has a gradient for {comparison.missing[0]}{more}"
    count = f"{len(comparison.different)} of {len(comparison.layers)} gradients"
    if comparison.factor is not None:
        return f"{what}: {count} are those of {comparison.baseline} times {comparison.likely}"
    if by_batch:
        return f"{what}: {count} differ from {comparison.baseline}: {comparison.noisy[0]} normalizes each share of the batch"
    return (
        f"{what}: {count} differ from those of {comparison.baseline} beyond rounding, first {_first(comparison).name}"
    )


def _first(comparison: Comparison) -> Layer:
    """The layer nearest to the loss that differs: backward comes to it first."""
    return [layer for layer in comparison.layers if not layer.agrees][-1]


def _why(comparison: Comparison, *, by_batch: bool) -> str:
    if comparison.missing:
        return f"{len(comparison.missing)} parameters have a gradient on one side only, or a different shape"
    worst = comparison.different[0]
    words = f"{worst.name} differs by {worst.error:.2g} of its norm; rounding explains {worst.allowed:.2g}"
    if by_batch:
        return f"{words}; the statistics of a share are not those of the whole batch"
    return f"{words} ({comparison.precision}, {comparison.terms:,} terms)"


def _compared(*factors: float) -> Recording:
    from dataclasses import replace

    from distdoctor.testing.gradients import PARAMETERS, trained_job

    layers = tuple(
        Layer(name, factor, 1.0, abs(factor - 1), 1e-5, factor)
        for name, factor in zip(PARAMETERS, factors, strict=True)
    )
    comparison = Comparison(layers, (), 600, "fp32", 2, 1, strategy="ddp")
    return replace(trained_job(2).initial().step().step().recording(), comparison=comparison)


def sick() -> Recording:
    return _compared(2.0, 2.0, 2.0)


def healthy() -> Recording:
    return _compared(1.000001, 0.999999, 1.0)
