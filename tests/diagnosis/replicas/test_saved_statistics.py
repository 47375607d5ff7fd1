"""Running statistics that differ between ranks: a note, until one rank saves its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sick import PLUGINS

from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import CERTAIN, LIKELY, NOTE, WARNING, Finding
from distdoctor.recording.trace.events import Saving
from distdoctor.recording.trace.layout import TensorFlag
from distdoctor.testing.gradients import trained_job
from distdoctor.testing.states import snapshot

NAME = "1.running_mean"


def finding(by: tuple[int, ...] = (0,), *, averaged: bool = False, kept: str = NAME) -> Finding:
    """Two ranks step twice with statistics of their own, then `by` save a checkpoint that holds `kept`."""
    job = trained_job(2, buffers={NAME: int(TensorFlag.BUFFER | TensorFlag.NORMALISATION)}).initial()
    for _ in range(2):
        job.collective("all_reduce", [64, 64], nbytes=16384).step(buffers={1: 1})
    job.collective("all_reduce", [32 if averaged else 1], nbytes=128 if averaged else 2)
    step = job.logs[0]._step
    job.note(Saving("/job/ck.pt", "torch.save", step, 2**40, 4), only=by, site="train.py:42 main")
    states = tuple(snapshot("save", run="one", rank=rank, step=step, buffers={kept: "b"}) for rank in by)
    checks = [check for check in PLUGINS.checks.values() if check.code == "DD204"]
    (found,) = examine(replace(job.recording(), states=states), checks).findings
    return found


def test_statistics_that_one_rank_saves_as_its_own_are_a_warning() -> None:
    found = finding()

    assert (found.severity, found.confidence) == (WARNING, LIKELY)
    assert found.title.endswith("and rank 0 saves its own")
    assert [place.ranks for place in found.places] == [(0, 1), (0,)]


@pytest.mark.parametrize(
    "about",
    [{"by": ()}, {"by": (0, 1)}, {"averaged": True}, {"kept": "other"}],
    ids=["nobody saves", "each rank saves its own", "averaged before the save", "not in the checkpoint"],
)
def test_statistics_that_stay_each_ranks_own_are_a_note(about: dict[str, Any]) -> None:
    found = finding(**about)

    assert (found.severity, found.confidence) == (NOTE, CERTAIN)
