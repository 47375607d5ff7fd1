"""A launcher looks at its job for days: nothing of a look is left once it was told, without waiting for the collector."""

from __future__ import annotations

import gc
import weakref

import pytest
from sick import PLUGINS

from distdoctor.diagnosis.examination import examine
from distdoctor.testing.script import recording

CHECKS = tuple(PLUGINS.checks.values())


@pytest.mark.parametrize("stuck", [False, True], ids=["moving", "stuck"])
def test_a_look_at_a_running_job_leaves_no_cycle_behind(stuck: bool) -> None:
    script = recording(ranks=2)
    for _ in range(20):
        script.collective("all_reduce", [8], site="train.py:41 step").step()
    if stuck:
        script.collective("barrier", [], site="train.py:50 save", only=[0])
    found = script.live(silent_for=30.0)
    examine(found, CHECKS, live=True)  # what is loaded once stays
    gc.collect()
    gc.disable()
    try:
        seen = weakref.ref(found.ranks[0])
        diagnosis = examine(found, CHECKS, live=True)
        assert diagnosis.examined
        del found, diagnosis
        assert seen() is None
    finally:
        gc.enable()
