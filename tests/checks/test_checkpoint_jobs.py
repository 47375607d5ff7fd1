"""Saves and loads that go wrong: each on a real job, and silence on its healthy twin."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from commands import Said
from jobs import checkpoint as jobs
from jobs import replicas as gradient_jobs

from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import CERTAIN, ERROR, LIKELY, NOTE, POSSIBLE, WARNING, Finding, Severity
from distdoctor.plugins import load
from distdoctor.recording.recording import Recording

pytestmark = pytest.mark.job
TESTS = Path(__file__).parents[1]


def found(recording: Recording) -> list[Finding]:
    diagnosis = examine(recording, load().checks.values())
    assert [one for one in diagnosis.not_examined if "failed" in one.reason] == []
    return [one for one in diagnosis.findings if one.code.startswith("DD7")]


@pytest.mark.parametrize(
    ("job", "code", "severity", "confidence", "ranks", "words"),
    [
        (jobs.restored_from_wrapper, "DD701", ERROR, CERTAIN, (0, 1), "# nobody reads its answer"),
        (jobs.loaded_by_all, "DD702", NOTE, POSSIBLE, (0, 1), "# from wherever it was"),
        (jobs.saved_by_all, "DD703", WARNING, CERTAIN, (0, 1), "# on every rank"),
        (jobs.saved_shards, "DD707", ERROR, LIKELY, (0,), "# of this rank alone"),
        (jobs.best_again, "DD705", ERROR, CERTAIN, (1,), "# whatever is there"),
        (jobs.parts_restored, "DD706", WARNING, LIKELY, (1,), "if everywhere or rank == 0:"),
        (partial(jobs.written_by_all, by="json"), "DD703", WARNING, LIKELY, (0, 1), "# on every rank"),
        (partial(jobs.written_by_all, by="numpy"), "DD703", WARNING, LIKELY, (0, 1), "# on every rank"),
        (partial(jobs.written_by_all, by="rename"), "DD703", WARNING, LIKELY, (0, 1), "# on every rank"),
    ],
)
def test_a_checkpoint_that_goes_wrong_is_named_with_its_line(
    job: Callable[..., Any],
    code: str,
    severity: Severity,
    confidence: str,
    ranks: tuple[int, ...],
    words: str,
    tmp_path: Path,
) -> None:
    about = job.keywords if isinstance(job, partial) else {}
    recording, _ = gradient_jobs.watched(getattr(job, "func", job), folder=str(tmp_path), **about)

    (finding,) = found(recording)

    assert (finding.code, finding.severity, finding.confidence) == (code, severity, confidence), finding.title
    assert finding.ranks == ranks
    assert words in recording.sources[finding.place.path].splitlines()[finding.place.line - 1]


@pytest.mark.parametrize(
    ("job", "about"),
    [
        (jobs.saved_shards, {"every": "yes"}),
        (jobs.saved_shards, {"whole": True}),
        (jobs.restored_from_wrapper, {"inner": True}),
        (jobs.new_head, {}),
        (jobs.loaded_by_all, {"placed": True}),
        (jobs.saved_by_all, {"own": True}),
        (jobs.saved_in_turns, {}),
        (jobs.best_again, {"waits": True}),
        (jobs.parts_restored, {"everywhere": True}),
        (jobs.written_by_all, {"by": "json", "own": "name"}),
        (jobs.written_by_all, {"by": "numpy", "own": "nothing"}),
        (jobs.written_by_all, {"by": "rename", "own": "nothing"}),
        (jobs.written_by_all, {"by": "json", "own": "turn"}),
        (jobs.written_by_all, {"by": "json", "own": "word"}),
    ],
)
def test_its_healthy_twin_is_silent_and_trains_the_same_to_the_last_bit(
    job: Callable[..., Any], about: dict[str, Any], tmp_path: Path
) -> None:
    recording, looked_at = gradient_jobs.watched(job, folder=str(tmp_path), **about)
    _, left_alone = gradient_jobs.watched(job, streams="collectives", folder=str(tmp_path), **about)

    assert [(one.code, one.title) for one in found(recording)] == []
    assert looked_at == left_alone


@pytest.mark.parametrize("script", ["ASYNCHRONOUS", "POINTING"])
@pytest.mark.parametrize("waits", [False, True])
def test_a_checkpoint_that_was_not_finished_when_the_job_ended_is_named(
    script: str, waits: bool, tmp_path: Path, say: Callable[..., Said]
) -> None:
    train, folder = tmp_path / "train.py", tmp_path / "ck"
    train.write_text(getattr(jobs, script))
    folder.mkdir()
    job = (train, folder, "wait" if waits else "go", TESTS)

    done = say("run", "--standalone", "--nproc", 2, "-o", "report.json", *job)

    report = json.loads((tmp_path / "report.json").read_text())
    findings = [one for one in report["findings"] if one["code"].startswith("DD7")]
    assert [one["code"] for one in findings] == ([] if waits else ["DD707"]), (findings, done.err)
    assert [one["confidence"] for one in findings] == (
        [] if waits else ["certain" if script == "ASYNCHRONOUS" else "likely"]
    )
