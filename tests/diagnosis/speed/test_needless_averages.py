"""Shards that are reduced in every micro-step, although the source means to do so once per step."""

from __future__ import annotations

import pytest
from sick import PLUGINS

from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import LIKELY, NOTE, Finding
from distdoctor.recording.trace.layout import UpdateFlag
from distdoctor.testing.gradients import trained_job

GUARD = """for last in windows:
    if hasattr(model, "require_backward_grad_sync"):
        model.require_backward_grad_sync = last
"""
SHARDED = GUARD + "    model.set_requires_gradient_sync(last)\n"


def findings(source: str, micro_steps: int = 4) -> tuple[Finding, ...]:
    """Of a job that scatters two buckets of shards in each of its micro-steps."""
    job = trained_job(2, wrapped=False).initial()
    for _ in range(8):
        for _ in range(micro_steps):
            for size in (65, 1024):
                job.collective("reduce_scatter_tensor", [size])
        flags = UpdateFlag.DIGESTED | UpdateFlag.STATE | UpdateFlag.ONE_LINE
        job.step(backwards=micro_steps, synced=0, unsynced=0, flags=flags)
    checks = [check for check in PLUGINS.checks.values() if check.code == "DD501"]
    return examine(job.recording(sources={"/job/train.py": source}), checks).findings


def test_a_guard_that_does_not_reach_fully_shard_is_a_note_at_its_line() -> None:
    (finding,) = findings(GUARD)

    assert (finding.severity, finding.confidence, finding.ranks) == (NOTE, LIKELY, (0, 1))
    assert finding.evidence["micro_steps"] == 4
    assert "require_backward_grad_sync" in GUARD.splitlines()[finding.place.line - 1]


@pytest.mark.parametrize(
    ("source", "micro_steps"),
    [(SHARDED, 4), ("for batch in loader:\n    loss(batch).backward()\n", 4), (GUARD, 1)],
    ids=["knows fully_shard", "means to trade time for memory", "one pass"],
)
def test_shards_that_are_reduced_on_purpose_are_fine(source: str, micro_steps: int) -> None:
    assert findings(source, micro_steps) == ()
