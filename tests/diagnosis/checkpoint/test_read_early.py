"""A load that fails because the asynchronous save of what it reads is not over, and loads that have no such excuse."""

from __future__ import annotations

import pytest
from sick import PLUGINS

from distdoctor.diagnosis.finding import CERTAIN
from distdoctor.recording.recording import Recording
from distdoctor.recording.trace.events import Loading, Saving
from distdoctor.testing.gradients import trained_job

CHECK = PLUGINS.checks["DD707"]
OVER = 1_000_000_000_000_000  # after everything
PATH = "/job/step_60"


def job(saving: Saving, loading: Loading) -> Recording:
    made = trained_job(2).initial().step()
    return made.note(saving, site="train.py:27 save").note(loading, site="train.py:43 restore").recording(running=True)


@pytest.mark.parametrize("done_ns", [0, OVER])
def test_a_load_that_fails_before_the_save_is_over_is_told_with_both_lines(done_ns: int) -> None:
    (finding,) = CHECK.look(job(Saving(PATH, "dcp.async_save", 60, done_ns), Loading(PATH, "dcp.load", 60, -1)))

    assert finding.title == "ranks 0-1 read the checkpoint /job/step_60 before its asynchronous save was over"
    assert (finding.ranks, finding.confidence) == ((0, 1), CERTAIN)
    assert [place.site.short for place in finding.places] == ["train.py:27", "train.py:43"]


@pytest.mark.parametrize(
    ("saving", "loading"),
    [
        (Saving(PATH, "dcp.async_save", 60, 0), Loading(PATH, "dcp.load", 60, OVER)),  # it worked
        (
            Saving(PATH, "dcp.async_save", 60, 1),
            Loading(PATH, "dcp.load", 60, -1),
        ),  # it was over, something else is wrong
        (Saving(PATH, "dcp.async_save", 60, 0), Loading("/job/step_30", "dcp.load", 60, -1)),  # another one
        (Saving(PATH, "dcp.save", 60, 0), Loading(PATH, "dcp.load", 60, -1)),  # it waits for itself
    ],
)
def test_other_loads_are_not(saving: Saving, loading: Loading) -> None:
    assert CHECK.look(job(saving, loading)) == []
