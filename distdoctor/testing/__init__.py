"""Recordings made by hand, for tests of checks: what the trace reader would have read of a job that never ran.

For tests of trainings there are `testing.assertions` and `testing.faults`, which need torch.

script = recording(ranks=4)
for step in range(5):
    script.collective("all_reduce", [25600], site="train.py:41 train_step").skipped_by(2 if step == 3 else ())
    script.step()
hung = script.live(silent_for=12)        # a Recording, read while the job hangs
"""

from __future__ import annotations

from distdoctor.testing.rank_trace import TraceBuilder, build_log, site_of
from distdoctor.testing.script import Script, recording
from distdoctor.testing.simulation import SimulatedJob

__all__ = [
    "Script",
    "SimulatedJob",
    "TraceBuilder",
    "build_log",
    "recording",
    "site_of",
]
