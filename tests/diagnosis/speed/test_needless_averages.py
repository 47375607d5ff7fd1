"""Shards that are reduced in every micro-step, although the source means to do so once per step."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sick import PLUGINS

from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import LIKELY, NOTE, Finding
from distdoctor.recording.trace.layout import UpdateFlag
from distdoctor.testing.gradients import trained_job
from distdoctor.testing.timing import timed_job

GUARD = """for last in windows:
    if hasattr(model, "require_backward_grad_sync"):
        model.require_backward_grad_sync = last
"""
SHARDED = GUARD + "    model.set_requires_gradient_sync(last)\n"
CHECKS = [check for check in PLUGINS.checks.values() if check.code == "DD501"]


def findings(source: str, micro_steps: int = 4) -> tuple[Finding, ...]:
    """Of a job that scatters two buckets of shards in each of its micro-steps."""
    job = trained_job(2, wrapped=False).initial()
    for _ in range(8):
        for _ in range(micro_steps):
            for size in (65, 1024):
                job.collective("reduce_scatter_tensor", [size])
        flags = UpdateFlag.DIGESTED | UpdateFlag.STATE | UpdateFlag.ONE_LINE
        job.step(backwards=micro_steps, synced=0, unsynced=0, flags=flags)
    return examine(job.recording(sources={"/job/train.py": source}), CHECKS).findings


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


def test_the_context_that_leaves_no_average_out_comes_before_the_backward_pass() -> None:
    recording = timed_job(2).steps(24, micro_steps=4, synced=4, forward=5, backward=8).recording()
    (plain,) = examine(recording, CHECKS).findings
    rows = [""] * plain.place.line
    rows[0] = "def sync(last):\n    return contextlib.nullcontext()"
    rows[9] = "with sync(last):"
    rows[-2] = "    loss.backward()"
    (finding,) = examine(replace(recording, sources={plain.place.path: "\n".join(rows)}), CHECKS).findings

    assert [place.site.line for place in finding.places[:3]] == [2, 11, plain.place.line]
    assert finding.place == finding.places[0].site
