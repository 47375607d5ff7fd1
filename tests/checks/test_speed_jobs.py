"""The checks on speed, each on a real job that loses time and on the healthy ones that look most like it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from jobs import speed as jobs

from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import ERROR, Finding
from distdoctor.plugins import load
from distdoctor.recording.recording import Recording

# A rank from which a busy machine takes its core is a slow rank in earnest: then the job has to be run again.
pytestmark = [pytest.mark.job, pytest.mark.flaky(reruns=3, reruns_delay=2)]


def found(recording: Recording) -> list[Finding]:
    """What the installed checks say about speed."""
    diagnosis = examine(recording, [c for c in load().checks.values() if c.code.startswith("DD5") or c.code == "DD123"])
    assert [one for one in diagnosis.not_examined if "failed" in one.reason] == []
    assert all(one.severity is not None and one.severity < ERROR for one in diagnosis.findings)
    return list(diagnosis.findings)


ILL: list[tuple[Callable[..., Any], dict[str, Any], str, tuple[int, ...], str]] = [
    (jobs.slow_data, {}, "DD504", (1,), "# the loop"),
    (jobs.slow_data_everywhere, {}, "DD504", (0, 1), "# the loop"),
    (jobs.kept_by_workers, {}, "DD504", (0, 1), "# its workers"),
    (jobs.kept_by_workers, {"lives_on": True, "anew": True}, "DD504", (0, 1), "# its workers"),
    (jobs.slow_forward, {}, "DD123", (1,), "# every micro-step"),
    (jobs.slow_backward, {}, "DD123", (1,), "# every micro-step"),
    (jobs.delayed, {"each": 0.03, "delay": 2}, "DD123", (1,), "# in the background"),
    (jobs.evaluating, {}, "DD123", (0,), "# the others go on"),
    (jobs.synchronised_every_micro_step, {}, "DD501", (0, 1), "with model.no_sync() if no_sync"),
    (jobs.two_optimizers, {}, "DD501", (0, 1), "# in every micro-step of both"),
    (jobs.two_lines, {}, "DD501", (0, 1), "# the backward alone"),
    (jobs.left_over, {}, "DD501", (0, 1), "# each averages"),
    (jobs.averaged_one_by_one, {}, "DD508", (0, 1), "# one by one"),
    (jobs.averaged_in_hooks, {}, "DD508", (0, 1), "# by hooks"),
    (jobs.with_barriers, {}, "DD511", (0, 1), "# protects nothing"),
    (jobs.scored, {}, "DD511", (0, 1), "# every row"),
    (jobs.tracked, {}, "DD511", (0, 1), "# row by row"),
    (jobs.sending_masks, {}, "DD511", (0, 1), "# sends its mask"),
    (jobs.searching, {}, "DD503", (0, 1), "model = DistributedDataParallel(Net"),
    (jobs.on_the_wire, {"steps": 2 * jobs.STEPS}, "DD505", (0, 1), "# what is sent"),
    (jobs.pipelined, {}, "DD506", (1,), "# the stages"),
    (jobs.collecting, {}, "DD512", (0, 1), "# walks through the heap"),
    (jobs.collecting, {"together": True, "every": 1}, "DD512", (0, 1), "# walks through the heap"),
    (jobs.reading, {}, "DD513", (1,), "# long and short texts"),
    (jobs.compiling, {}, "DD514", (0, 1), "# of another length"),
    (jobs.showing, {}, "DD508", (0, 1), "# to be shown"),
    (jobs.scoring, {}, "DD123", (0,), "# alone"),
]


@pytest.mark.parametrize(
    ("job", "about", "code", "ranks", "words"), ILL, ids=[f"{case[0].__name__}{n}" for n, case in enumerate(ILL)]
)
def test_lost_time_is_found_with_its_rank_and_line(
    job: Callable[..., Any], about: dict[str, Any], code: str, ranks: tuple[int, ...], words: str
) -> None:
    recording = jobs.watched(job, **about)

    findings = found(recording)

    assert [(one.code, one.ranks) for one in findings] == [(code, ranks)], [one.title for one in findings]
    assert words in recording.sources[findings[0].place.path].splitlines()[findings[0].place.line - 1]


HEALTHY: list[tuple[Callable[..., Any], dict[str, Any]]] = [
    (jobs.ordinary, {}),
    (jobs.scored, {"counts": True}),
    (jobs.tracked, {"every": 20}),
    (jobs.read_ahead, {}),
    (jobs.kept_by_workers, {"lives_on": True}),
    (jobs.evaluating, {"together": True}),
    (jobs.synchronised_every_micro_step, {"no_sync": True}),
    (jobs.two_optimizers, {"in_turns": True}),
    (jobs.two_lines, {"forward_too": True}),
    (jobs.averaged_at_once, {}),
    (jobs.tensor_parallel, {}),
    (jobs.delayed, {}),
    (jobs.pipelined, {"seconds": (0.005, 0.005)}),
    (jobs.searching_for_a_reason, {}),
    (jobs.searching_no_more, {}),
    (jobs.on_the_wire, {"hidden": True, "seconds": 0.15, "steps": 20}),
    (jobs.barriers_now_and_then, {}),
    (jobs.sending_masks, {"counts": True}),
    (jobs.sending_masks, {"sends": False}),
    (jobs.collecting, {"together": True}),
    (jobs.reading, {"each": 0.0}),
    (jobs.reading, {"lengths": (64, 64)}),
    (jobs.compiling, {"lengths": 2}),
    (jobs.compiling, {"lengths": 1, "evaluates": True}),
    (jobs.showing, {"each": 10}),
]


@pytest.mark.parametrize(("job", "about"), HEALTHY, ids=[f"{case[0].__name__}{n}" for n, case in enumerate(HEALTHY)])
def test_a_job_that_loses_nothing_to_speak_of_is_silent(job: Callable[..., Any], about: dict[str, Any]) -> None:
    assert [(one.code, one.title, one.why) for one in found(jobs.watched(job, **about))] == []


@pytest.mark.parametrize(("slow", "late"), [(0.0, []), (0.1, [(0,)])])
def test_the_first_stage_of_a_pipeline_comes_last_by_its_messages_unless_it_works_longer(
    slow: float, late: list[tuple[int, ...]]
) -> None:
    findings = found(jobs.watched(jobs.drained, slow=slow))

    assert [one.ranks for one in findings if one.code == "DD123"] == late
