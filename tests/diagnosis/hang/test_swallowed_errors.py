"""A rank that goes on after an error of its own has left out what the handler guards."""

from __future__ import annotations

import pytest
from sick import PLUGINS

from distdoctor.diagnosis.examination import examine
from distdoctor.testing import recording

CHECKS = [check for check in PLUGINS.checks.values() if check.family == "hang"]
SOURCE = """\
import torch.distributed as dist
def evaluate(model, rows):
    try:
        mine = threshold(model)
        dist.all_gather_object(rows, mine)
        return rows
    except Exception as error:
        log.warning(error)
def train(model, loader, rows):
    for epoch in range(9):
        for batch in loader:
            loss = model(batch)
            dist.all_reduce(loss)
        evaluate(model, rows)
"""


@pytest.mark.parametrize("failed", [0, 1])
def test_the_rank_that_never_came_to_the_guarded_call_is_the_odd_one(failed: int) -> None:
    """In the first evaluation of all, so no habit tells."""
    script = recording(ranks=2).source("train.py", SOURCE)
    for _ in range(5):
        script.collective("all_reduce", [1], site="train.py:12 train")
    for rank in range(2):
        if rank == failed:
            script.collective("all_reduce", [1], site="train.py:12 train", only=rank)
        else:
            script.collective("all_gather", [8], site="train.py:5 evaluate", only=rank)

    finding = examine(script.live(), CHECKS, live=True).findings[0]

    assert finding.ranks == (failed,)
    assert any(place.role.startswith("decides: `except Exception") for place in finding.places)
    assert "let the error end the job" in finding.prescriptions[0].change
