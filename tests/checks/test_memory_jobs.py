"""The checks on memory, each on a real job that is ill and on the healthy ones that look most like them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import memory_jobs as jobs
import pytest

from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import CERTAIN, LIKELY, Confidence, Finding
from distdoctor.plugins import load
from distdoctor.recording.recording import Recording

pytestmark = pytest.mark.job
HERE = (
    "DD401", "DD405", "DD406", "DD408", "DD410", "DD411", "DD412", "DD413",
)  # fmt: skip


def found(recording: Recording) -> list[Finding]:
    """What the installed checks on recorded memory say."""
    checks = [check for check in load().checks.values() if check.code in HERE]
    diagnosis = examine(recording, checks)
    assert [one for one in diagnosis.not_examined if "failed" in one.reason] == []
    return list(diagnosis.findings)


def only(recording: Recording) -> Finding:
    findings = found(recording)
    assert len(findings) == 1, [(one.code, one.title, one.why) for one in findings]
    return findings[0]


# job, code, variable, the words of the line that is pointed at, how sure, bytes per step (0: only operations grow)
GROWING: list[tuple[Callable[..., Any], str, str, Confidence, int]] = [
    (jobs.total_of_losses, "total", "total += loss  # with its graph", CERTAIN, 0),
    (jobs.kept_outputs, "outputs", "# a second forward, kept with its graph", CERTAIN, 256 * (512 + 32 + 10) * 4),
    (jobs.kept_in_an_attribute, "self.history", "# in an attribute", CERTAIN, 4),
    (jobs.carried_state, "hidden", "# the state of the batch before", CERTAIN, 256 * (32 + 64) * 4),
    (jobs.cache_without_bound, "cache", "# one MiB in each step", LIKELY, 1 << 20),
]


@pytest.mark.parametrize(
    ("job", "variable", "words", "sure", "size"), GROWING, ids=[one[0].__name__ for one in GROWING]
)
def test_what_grows_is_named_with_its_line_and_its_bytes(
    job: Callable[..., Any], variable: str, words: str, sure: Confidence, size: int
) -> None:
    ranks = 2 if job is jobs.total_of_losses else 1

    finding = only(jobs.watched(job, ranks=ranks)[0])

    assert (finding.code, finding.ranks, finding.confidence) == ("DD401", tuple(range(ranks)), sure)
    assert finding.evidence["variable"] == variable
    assert finding.place.line == jobs.line(words)
    assert abs(finding.evidence["bytes_per_step"] - size) <= 0.1 * size + 8  # type: ignore[operator]


HEALTHY: list[tuple[Callable[..., Any], dict[str, Any]]] = [
    (jobs.plain, {}),
    (jobs.plain, {"evaluate_every": 10}),
    (jobs.plain, {"accumulate": 3}),
    (jobs.sequences, {}),
    (jobs.sequences, {"growing": True}),
    (jobs.replayed, {}),
    (jobs.replayed, {"how": "deque"}),
    (jobs.averaged_weights, {}),
    (jobs.adversaries, {}),
    (jobs.carried_state, {"detach": True}),
    (jobs.attacked, {}),
    (jobs.second_loss, {}),
]


@pytest.mark.parametrize(("job", "about"), HEALTHY, ids=[f"{case[0].__name__}{n}" for n, case in enumerate(HEALTHY)])
def test_a_healthy_training_is_silent(job: Callable[..., Any], about: dict[str, Any]) -> None:
    recording, _ = jobs.watched(job, ranks=1, **about)

    assert [(one.code, one.title, one.why) for one in found(recording)] == []
    assert all(len(log.rows("memory")) > 4 for log in recording.ranks.values())
