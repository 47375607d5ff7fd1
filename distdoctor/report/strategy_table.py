"""Strategies side by side: the answer in the first line, then one row each."""

from __future__ import annotations

import json
from typing import Any

from distdoctor.diagnosis.speed.strategy_comparison import BASELINE, ComparisonTable, StrategyRow

SCHEMA_VERSION = 1
RESTLESS = 0.3  # median deviation of a step, as a share of its median
HEAD = ("strategy", "ranks", "samples/s", "ms a step", "peak MiB a rank", "balance", "MiB sent", "waiting", "loss")


def render(table: ComparisonTable) -> str:
    """The table as text."""
    rows = [HEAD, *(_cells(row, table) for row in table.rows if not row.failed)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
    lines = [answer(table), ""]
    lines += [_aligned(row, widths) for row in rows]
    lines += [f"  {row.strategy}  failed: {row.failed}" for row in table.rows if row.failed]
    lines += [f"  note  {row.strategy}: {note}" for row in table.rows for note in row.notes]
    lines += _restless(table)
    about = f"{table.model} on {table.data}, {table.steps} steps of {table.batch_size} samples over all ranks"
    return "\n".join([*lines, "", f"measured here: {about}", *_legend(table)]) + "\n"


def answer(table: ComparisonTable) -> str:
    """One line: the fastest that trains as `single` does."""
    best, alone = table.best, table.baseline
    if alone is None:
        return f"no answer: {BASELINE} failed, and the others are compared with it"
    if best is None or alone in table.as_fast:
        others = [row for row in table.rows if row.agrees and row is not alone]
        slower = "nothing that trains the same is faster beyond the scatter of the steps"
        slower = slower if others else "no other strategy trained the same"
        return f"{BASELINE} is the answer here, {alone.samples_per_second:,.0f} samples/s: {slower}"
    ratio = best.samples_per_second / alone.samples_per_second
    tied = [row.strategy for row in table.as_fast if row is not best]
    return (
        f"{best.strategy} on {best.ranks} rank{'s' if best.ranks > 1 else ''} is the fastest here that trains as {BASELINE} "
        f"does: {best.samples_per_second:,.0f} samples/s, {ratio:.2f} times {BASELINE}"
        + (f" (not to be told from {', '.join(tied)} by these steps)" if tied else "")
    )


def to_json(table: ComparisonTable) -> str:
    """The table as one document; sizes are bytes, times seconds."""
    best = table.best
    document = {
        "schema_version": SCHEMA_VERSION,
        "answer": answer(table),
        "fastest_equal": best.strategy if best else None,
        "as_fast": [row.strategy for row in table.as_fast],
        "steps": table.steps,
        "batch_size": table.batch_size,
        "model": table.model,
        "data": table.data,
        "strategies": [_fields(row) for row in table.rows],
    }
    return json.dumps(document, indent=2) + "\n"


def _fields(row: StrategyRow) -> dict[str, Any]:
    if row.failed:
        return {"strategy": row.strategy, "ranks": row.ranks, "failed": row.failed}
    return {
        "strategy": row.strategy,
        "ranks": row.ranks,
        "failed": None,
        "precision": row.precision,
        "device": row.device,
        "threads": row.threads,
        "samples_per_second": row.samples_per_second,
        "step_seconds": row.step.value,
        "step_deviation_seconds": row.step.spread,
        "peak_bytes": list(row.peaks),
        "peak_bytes_of_training": list(row.grown),
        "balance": row.balance,
        "bytes_sent_per_step": row.sent,
        "share_waiting_for_communication": row.waiting,
        "loss_apart": row.apart,
        "loss_apart_allowed": row.allowed,
        "agrees": row.agrees,
        "notes": list(row.notes),
    }


def _cells(row: StrategyRow, table: ComparisonTable) -> tuple[str, ...]:
    mib = 2**20
    grown = f" (+{max(row.grown) / mib:,.0f})" if row.device == "cpu" and row.grown else ""
    return (
        row.strategy,
        str(row.ranks),
        f"{row.samples_per_second:,.0f}",
        f"{row.step.value * 1e3:.1f} ± {row.step.spread * 1e3:.1f}",
        f"{max(row.peaks) / mib:,.0f}{grown}" if row.peaks else "-",
        f"{row.balance:.2f}" if row.balance is not None and row.ranks > 1 else "-",
        f"{row.sent / mib:.2f}" if row.sent else "0",
        f"{row.waiting:.0%}" if row.waiting is not None else "not seen",
        _loss(row, table),
    )


def _loss(row: StrategyRow, table: ComparisonTable) -> str:
    if row is table.baseline:
        return "the baseline"
    if row.apart is None:
        return "-"
    if row.agrees:
        return f"equal ({row.apart:.0e} apart, {row.precision})"
    skips = ", the scaler skips first steps" if row.precision == "fp16" else ""
    return f"DIFFERS ({row.apart:.0e} apart, {row.allowed:.0e} is rounding of {row.precision}{skips})"


def _aligned(row: tuple[str, ...], widths: list[int]) -> str:
    cells = [
        cell.ljust(w) if n in (0, 8) else cell.rjust(w) for n, (cell, w) in enumerate(zip(row, widths, strict=True))
    ]
    return ("  " + "  ".join(cells)).rstrip()


def _restless(table: ComparisonTable) -> list[str]:
    """One line where steps scatter so much that ratios between strategies mean little."""
    names = [row.strategy for row in table.rows if not row.failed and row.step.spread > RESTLESS * row.step.value]
    if not names:
        return []
    busy = "other work on this machine, or too few steps; measure again before you believe a ratio"
    return [f"  note  the steps of {', '.join(names)} scatter by more than {RESTLESS:.0%}: {busy}"]


def _legend(table: ComparisonTable) -> list[str]:
    on_cpu = any(row.device == "cpu" for row in table.rows if not row.failed)
    lines = ["ms a step: median ± deviation of the slowest rank; MiB sent: payload a step and rank"]
    if on_cpu:
        lines.append(
            "peak: resident memory of the fullest rank, in brackets what the training added to it; balance: least/most"
        )
    return lines
