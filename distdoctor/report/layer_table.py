"""A strategy's gradients beside those of one process, layer by layer, the worst first."""

from __future__ import annotations

from collections.abc import Iterable

from distdoctor.recording.comparison import Comparison


def render(comparison: Comparison) -> str:
    """The verdict, and the layers that differ most."""
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
    arithmetic = f"{comparison.precision}, {comparison.terms} terms"
    held = f"{len(comparison.layers)} parameters, {arithmetic}"
    if comparison.agrees:
        return f"against {comparison.baseline}: the same gradients up to rounding ({held})"
    if comparison.missing:
        return f"against {comparison.baseline}: {_some(comparison.missing)} cannot be compared, only one side holds them ({held})"
    wrong = f"{sum(not layer.agrees for layer in comparison.layers)} of {len(comparison.layers)} gradients differ"
    if comparison.factor is not None and abs(comparison.factor - 1) > 0.01:
        return f"against {comparison.baseline}: {wrong} by the factor {comparison.likely} ({arithmetic})"
    return f"against {comparison.baseline}: {wrong} beyond rounding ({arithmetic}), by no common factor"


def _some(names: Iterable[str]) -> str:
    names = list(names)
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
