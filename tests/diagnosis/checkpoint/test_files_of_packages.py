"""What an installed package keeps beside its code and loads itself is nobody's load without a device."""

from __future__ import annotations

import pytest
from sick import PLUGINS

from distdoctor.diagnosis.examination import examine
from distdoctor.recording.trace.events import Loading, StateLoaded
from distdoctor.testing.gradients import trained_job


@pytest.mark.parametrize(
    ("path", "codes"), [("/job/c.pt", ["DD702"]), ("/venv/lib/python3.11/site-packages/e3nn/constants.pt", [])]
)
def test_only_loads_of_the_users_files_are_told(path: str, codes: list[str]) -> None:
    job = trained_job(2).note(Loading(path, "torch.load", 0, 1, placed=False, foreign=4096), site="train.py:20 main")
    job.note(StateLoaded("module", ("Net",), own=4), site="train.py:21 main")

    found = examine(job.initial().step().recording(), [PLUGINS.checks["DD702"]]).findings
    assert [one.code for one in found] == codes
