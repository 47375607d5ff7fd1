"""The loop over batches that were kept of a loader, as the source shows it."""

from __future__ import annotations

import pytest

from distdoctor.diagnosis.source.kept_batches import loop_over_kept
from distdoctor.recording.source_line import SourceLine

PATH = "/job/train.py"


def loop(*rows: str) -> int:
    """The line of the loop over what line 1 keeps, 0 where there is none."""
    found = loop_over_kept({PATH: "\n".join(rows) + "\n"}, SourceLine(PATH, 1, "<module>"))
    return found.line if found is not None else 0


@pytest.mark.parametrize(
    "kept",
    ["batches = list(loader)", "batches = [b for b in loader]", "batches = tuple(loader)"],
    ids=["list", "[]", "tuple"],
)
@pytest.mark.parametrize("step", ["loss(b).backward()", "train_on(b)", "engine.training_step(b)"])
def test_a_loop_that_trains_on_kept_batches_in_every_epoch_is_found(kept: str, step: str) -> None:
    assert loop(kept, "for epoch in range(3):", "    for i, b in enumerate(batches):", f"        {step}") == 3


@pytest.mark.parametrize(
    "rows",
    [
        ("batches = list(loader)", "for b in batches:", "    loss(b).backward()"),
        ("batches = list(loader)", "for epoch in range(3):", "    for b in loader:", "        loss(b).backward()"),
        ("batches = list(loader)", "while True:", "    shuffle(batches)", "    for b in batches:", "        step(b)"),
        ("batches = list(loader)", "for epoch in range(3):", "    for b in batches:", "        evaluate(b)"),
        ("first = next(iter(loader))", "for epoch in range(3):", "    for b in first:", "        step(b)"),
    ],
    ids=["once", "the loader itself", "shuffled", "evaluated", "one batch"],
)
def test_other_loops_are_not(rows: tuple[str, ...]) -> None:
    assert loop(*rows) == 0
