"""Shards that are reduced in every micro-step, although the source means to do so once per step."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sick import PLUGINS

from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import CERTAIN, LIKELY, NOTE, Finding
from distdoctor.recording.trace.layout import UpdateFlag
from distdoctor.testing.gradients import trained_job
from distdoctor.testing.timing import TimedJob, timed_job

GUARD = """for last in windows:
    if hasattr(model, "require_backward_grad_sync"):
        model.require_backward_grad_sync = last
"""
SHARDED = GUARD + "    model.set_requires_gradient_sync(last)\n"
CHECKS = [check for check in PLUGINS.checks.values() if check.code == "DD501"]


def findings(source: str, others: dict[str, str] | None = None, *, micro_steps: int = 4) -> tuple[Finding, ...]:
    """Of a job that scatters two buckets of shards in each of its micro-steps."""
    job = trained_job(2, wrapped=False).initial()
    for _ in range(8):
        for _ in range(micro_steps):
            for size in (65, 1024):
                job.collective("reduce_scatter_tensor", [size])
        flags = UpdateFlag.DIGESTED | UpdateFlag.STATE | UpdateFlag.ONE_LINE
        job.step(backwards=micro_steps, synced=0, unsynced=0, flags=flags)
    return examine(job.recording(sources={"/job/train.py": source} | (others or {})), CHECKS).findings


def test_a_guard_that_does_not_reach_fully_shard_is_a_note_at_its_line() -> None:
    (finding,) = findings(GUARD)

    assert (finding.severity, finding.confidence, finding.ranks) == (NOTE, LIKELY, (0, 1))
    assert finding.evidence["micro_steps"] == 4
    assert "require_backward_grad_sync" in GUARD.splitlines()[finding.place.line - 1]


def test_a_guard_in_another_file_counts_as_well() -> None:
    (finding,) = findings("for batch in loader:\n    loss(batch).backward()\n", {"/job/helpers.py": GUARD})

    assert (finding.severity, finding.place.short) == (NOTE, "helpers.py:2")


@pytest.mark.parametrize(
    ("source", "micro_steps"),
    [(SHARDED, 4), ("for batch in loader:\n    loss(batch).backward()\n", 4), (GUARD, 1)],
    ids=["knows fully_shard", "means to trade time for memory", "one pass"],
)
def test_shards_that_are_reduced_on_purpose_are_fine(source: str, micro_steps: int) -> None:
    assert findings(source, micro_steps=micro_steps) == ()


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


def told(job: TimedJob, source: str | None = None) -> tuple[Finding, ...]:
    recording = job.recording()
    return examine(replace(recording, sources={"/job/train.py": source}) if source else recording, CHECKS).findings


def with_leftovers(every: int) -> TimedJob:
    """Two micro-batches a step; every so many steps one is left over, and zeroed as the next window begins."""
    job, flags = timed_job(2), UpdateFlag.DIGESTED | UpdateFlag.STATE | UpdateFlag.ONE_LINE
    for number in range(24):
        left = number % every == every - 1
        passes = 3 if left else 2
        cleared = UpdateFlag.CLEARED if left else UpdateFlag(0)
        job.steps(1, micro_steps=passes, synced=passes, forward=5, backward=8, flags=flags | cleared)
    return job


def test_micro_batches_that_are_left_over_at_the_end_of_an_epoch_hide_no_waste() -> None:
    (finding,) = told(with_leftovers(3))

    assert (finding.confidence, finding.evidence["micro_steps"]) == (CERTAIN, 2)
    assert told(with_leftovers(1)) == ()  # nothing is accumulated: zeroed before the last of them in each step


AROUND_BACKWARD = """for last in windows:
    loss = model(batch)
    if last:
        loss.backward()
    else:
        with model.no_sync():
            loss.backward()
"""


@pytest.mark.parametrize(
    ("source", "found"),
    [
        (AROUND_BACKWARD, True),
        (AROUND_BACKWARD.replace("            loss.backward()", "            model(batch).backward()"), False),
        (AROUND_BACKWARD.replace("with model.no_sync()", "with record_function('second')"), False),
    ],
    ids=["around the backward alone", "around a forward as well", "two losses"],
)
def test_no_sync_around_the_backward_alone_saves_nothing(source: str, found: bool) -> None:
    flags = UpdateFlag.DIGESTED | UpdateFlag.STATE
    findings = told(timed_job(2).steps(24, micro_steps=2, synced=2, forward=5, backward=8, flags=flags), source)

    assert [(one.confidence, one.place.line) for one in findings] == [(LIKELY, 6)] * found
    assert [one.prescriptions[0].change for one in findings] == [
        "take the forward into the block: with model.no_sync():"
    ] * found
