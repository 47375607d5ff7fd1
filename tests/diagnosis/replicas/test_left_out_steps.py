"""Optimizer steps that a rank left out between two steps that were sampled."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sick import PLUGINS

from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import CERTAIN, LIKELY, Finding
from distdoctor.testing.gradients import trained_job
from distdoctor.testing.rank_trace import TraceBuilder

STEPS, SAMPLED = 64, 16
VARYING = dict.fromkeys(range(1, 41, 2), 2)


def told(passes: dict[int, dict[int, int]], *, usual: int = 1, forgotten: int = 0, scale: float = 0.0) -> Finding:
    """The finding on two ranks whose weights differ from step 48 on, of which every 16th step was looked at.

    `passes`: rank -> step -> the backward passes before it, where these are not as many as `usual`. `forgotten`: steps that
    are no longer on record.
    """
    job = trained_job(2).initial()
    for step in range(SAMPLED, STEPS + 1, SAMPLED):
        apart = {1: step} if step >= 48 else {}
        job.step(skip=SAMPLED - 1, params=apart, before=apart, backwards=usual, synced=usual, scale=scale)
    recording = job.recording()
    logs = {}
    for rank, log in recording.ranks.items():
        every = TraceBuilder(rank, world_size=2)
        for step in range(1, STEPS + 1):
            every.step(micro_steps=passes.get(rank, {}).get(step, usual))
        logs[rank] = replace(log, steps=every.build().steps[forgotten:])
    (finding,) = examine(replace(recording, ranks=logs), PLUGINS.checks.values()).findings
    return finding


@pytest.mark.parametrize("usual", [1, 4])
def test_the_first_step_that_a_rank_left_out_is_named_though_it_was_not_sampled(usual: int) -> None:
    finding = told({0: {41: 2 * usual, 45: 2 * usual}, 1: {43: 2 * usual}}, usual=usual)

    assert (finding.code, finding.ranks, finding.confidence) == ("DD210", (0,), LIKELY)
    assert finding.title == "step 41: rank 1 took an optimizer step that rank 0 skipped"
    assert f"{2 * usual} on rank 0, {usual} on rank 1" in finding.why


def test_what_all_ranks_left_out_together_before_hides_no_step_that_one_left_out_alone() -> None:
    finding = told({0: {30: 2}, 1: {30: 2, 41: 2}})

    assert (finding.code, finding.ranks, finding.title[:8]) == ("DD210", (1,), "step 41:")


def test_steps_that_both_ranks_leave_out_explain_nothing() -> None:
    assert (told({0: {41: 2}, 1: {41: 2}}).code, told({}).code) == ("DD203", "DD203")


@pytest.mark.parametrize(
    ("passes", "about"),
    [
        ({0: {41: 3}}, {"usual": 2}),  # no whole window more
        ({0: {12: 2}}, {}),  # they agreed after that
        ({0: {**VARYING, 41: 2}, 1: VARYING}, {}),  # windows of many lengths
        ({0: {41: 2}}, {"forgotten": 1}),
        ({0: {41: 2}}, {"scale": 1024.0}),
    ],
)
def test_counts_that_prove_no_step_left_out_are_not_taken_for_one(
    passes: dict[int, dict[int, int]], about: dict[str, int]
) -> None:
    finding = told(passes, **about)  # type: ignore[arg-type]

    assert (finding.code, finding.confidence) == ("DD203", CERTAIN)
