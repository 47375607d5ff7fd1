"""A loop over data that had as many turns on all ranks parts nobody: the question that ended the loop around it does."""

from __future__ import annotations

from typing import Any

import pytest
from sick import PLUGINS

from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import Finding
from distdoctor.testing import recording

SECOND = 1_000_000_000
CHECKS = [check for check in PLUGINS.checks.values() if check.family == "hang"]
TRAINING = """\
import os


def rows(path):
    return [one for one in os.listdir(path)] if os.path.isfile(path) else []


def train(model, path, patience):
    bad, best = 0, 0.0
    for epoch in range(100):
        for batch in enumerate(rows(path)):
            model(batch).backward()
        score = evaluate(model)
        bad, stop = (0, False) if score > best else (bad + 1, bad >= patience)
        if stop:
            break
"""


def left(*batches: tuple[int, int]) -> Finding:
    """Rank 0 ends before the fourth epoch; `batches` of both ranks by pass."""
    script = recording(ranks=2).source("train.py", TRAINING)
    for _ in range(6):
        script.collective("all_reduce", [17], site="train.py:12 train").step()
    script.exits(0).collective("all_reduce", [17], site="train.py:12 train")
    film: Any = script.film()
    for rank, runner in film.runners.items():
        for number, counts in enumerate(batches):
            runner.log.loader_pass(pass_number=number, batches=counts[rank], loop_site="train.py:11 train")
    last = max(int(runner.log.last_call["entered_ns"]) for runner in film.runners.values())
    return examine(film.read(last + 60 * SECOND), CHECKS, live=True).findings[0]


@pytest.mark.parametrize(
    ("batches", "decides"),
    [
        pytest.param(((2, 2), (2, 2), (2, 2)), "if stop", id="as many on both, each time"),
        pytest.param(((2, 2),), "for ... in enumerate(rows(path))", id="seen once"),
    ],
)
def test_a_loop_of_as_many_turns_decides_nothing(batches: tuple[tuple[int, int], ...], decides: str) -> None:
    finding = left(*batches)

    assert finding.code == "DD109"
    assert f"diverged at `{decides}`" in finding.why
