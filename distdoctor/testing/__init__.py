"""For tests: assertions about ranks and diagnoses, and recordings made by hand.

A recording made by hand is what the trace reader would have read of a job that never ran. Tests of checks need it.

script = recording(ranks=4)
for step in range(5):
    script.collective("all_reduce", [25600], site="train.py:41 train_step").skipped_by(2 if step == 3 else ())
    script.step()
hung = script.live(silent_for=12)        # a Recording, read while the job hangs
"""

from __future__ import annotations

from distdoctor.testing.assertions import (
    assert_disjoint_samples,
    assert_healthy,
    assert_peak_memory,
    assert_same_collectives,
    assert_same_on_all_ranks,
)
from distdoctor.testing.rank_trace import TraceBuilder, build_log, site_of
from distdoctor.testing.script import Script, recording
from distdoctor.testing.simulation import SimulatedJob

__all__ = [
    "Script",
    "SimulatedJob",
    "TraceBuilder",
    "assert_disjoint_samples",
    "assert_healthy",
    "assert_peak_memory",
    "assert_same_collectives",
    "assert_same_on_all_ranks",
    "build_log",
    "recording",
    "site_of",
]
