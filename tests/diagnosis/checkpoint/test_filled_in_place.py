"""A resume whose optimizer begins anew is told why, where torch's checkpoint only fills what is there."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sick import PLUGINS

from distdoctor.recording.trace.events import Loading
from distdoctor.testing.gradients import trained_job
from distdoctor.testing.states import snapshot


@pytest.mark.parametrize(("by", "told"), [("dcp.load", True), ("torch.load", False)])
def test_what_fills_only_what_is_there_is_named(by: str, told: bool) -> None:
    weights = {"head.weight": "b"}
    earlier = (
        snapshot("start", run="one", weights={"head.weight": "a"}),
        snapshot("save", run="one", step=20, weights=weights, moments={"head.weight": "m"}, site="train.py:42 main"),
    )
    start = snapshot("start", run="two", weights=weights, moments={}, resumes=True)
    job = trained_job(1).initial().note(Loading("/job/ck", by), site="train.py:40 restore").step()
    (finding,) = PLUGINS.checks["DD706"].look(replace(job.recording(), states=(start,), earlier_states=earlier))

    assert ("get_state_dict" in finding.prescriptions[0].change) == told
