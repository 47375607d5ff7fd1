"""Strategies side by side: the first line is the answer, and it claims no more than the steps show."""

from __future__ import annotations

import json
from dataclasses import replace

from distdoctor.diagnosis.speed.robust_median import RobustMedian
from distdoctor.diagnosis.speed.strategy_comparison import ComparisonTable, StrategyRow
from distdoctor.report.strategy_table import answer, render, to_json


def row(
    strategy: str, milliseconds: float, *, ranks: int = 2, scatter: float = 0.2, apart: float = 1e-7
) -> StrategyRow:
    step = RobustMedian(milliseconds / 1e3, scatter / 1e3, 27)
    return StrategyRow(
        strategy=strategy,
        ranks=ranks,
        samples_per_second=32 / step.value,
        step=step,
        peaks=(700 << 20,) * ranks,
        grown=(100 << 20,) * ranks,
        sent=1 << 20,
        waiting=0.25,
        apart=apart,
        allowed=8e-5,
    )


def table(*rows: StrategyRow) -> ComparisonTable:
    return ComparisonTable((row("single", 20, ranks=1, apart=0.0), *rows), 30, 32, "mlp", "digits")


def test_the_fastest_that_trains_the_same_is_the_answer() -> None:
    found = table(row("ddp", 10), row("fsdp", 15))
    assert answer(found) == (
        "ddp on 2 ranks is the fastest here that trains as single does: 3,200 samples/s, 2.00 times single"
    )


def test_a_faster_one_that_trains_something_else_is_not_the_answer() -> None:
    found = table(row("ddp", 15), row("amp", 5, apart=0.2))
    assert answer(found).startswith("ddp on 2 ranks")
    assert "DIFFERS (2e-01 apart, 8e-05 is rounding of fp32)" in render(found)


def test_what_scatter_hides_is_not_claimed() -> None:
    found = table(row("ddp", 18, scatter=9))
    assert answer(found) == (
        "single is the answer here, 1,600 samples/s: nothing that trains the same is faster beyond the scatter of the steps"
    )
    assert "not to be told from fsdp" in answer(table(row("ddp", 10, scatter=3), row("fsdp", 10.5)))


def test_a_restless_machine_is_told_and_a_quiet_one_is_not() -> None:
    restless = render(table(row("ddp", 10.0, scatter=4.0)))

    assert "  note  the steps of ddp scatter by more than 30%" in restless
    assert "scatter by more" not in render(table(row("ddp", 10.0)))


def test_a_strategy_that_failed_has_a_row_with_its_reason() -> None:
    found = table(StrategyRow("pipeline", 2, failed="the model cannot be cut"))
    assert "  pipeline  failed: the model cannot be cut" in render(found)
    assert json.loads(to_json(found))["strategies"][1] == {
        "strategy": "pipeline",
        "ranks": 2,
        "failed": "the model cannot be cut",
    }


def test_without_the_baseline_there_is_no_answer() -> None:
    found = table(row("ddp", 10))
    found = replace(found, rows=(StrategyRow("single", 1, failed="out of memory"), *found.rows[1:]))
    assert answer(found).startswith("no answer: single failed")


def test_the_table_is_the_same_in_json() -> None:
    document = json.loads(to_json(table(row("ddp", 10))))
    assert (document["schema_version"], document["fastest_equal"], document["as_fast"]) == (1, "ddp", ["ddp"])
    assert document["strategies"][1]["bytes_sent_per_step"] == 1 << 20
    assert document["strategies"][1]["balance"] == 1
