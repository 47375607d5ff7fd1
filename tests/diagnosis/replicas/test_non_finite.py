"""An infinity that no optimizer uses is what a loss scale of one's own is made for; one that trains on is an error."""

from __future__ import annotations

import pytest
from sick import PLUGINS

from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import CERTAIN, ERROR, NOTE, Finding
from distdoctor.recording.trace.events import NonFinite
from distdoctor.testing.gradients import TrainedJob, trained_job

NON_FINITE = PLUGINS.checks["DD801"]


def _overflow(job: TrainedJob) -> TrainedJob:
    return job.note(NonFinite("loss", "inf", step=job.steps + 1, backward=job.steps + 1), only=[0])


def _told(job: TrainedJob, *, running: bool = False) -> list[Finding]:
    return list(examine(job.recording(running=running), [NON_FINITE]).findings)


def test_an_overflow_that_every_rank_leaves_out_is_a_note() -> None:
    (finding,) = _told(_overflow(trained_job().initial().step()).step().step())
    assert (finding.severity, finding.ranks) == (NOTE, (0,))


def test_an_infinity_that_the_optimizer_uses_is_an_error() -> None:
    broken = {0: ["head.weight"], 1: ["head.weight"]}
    (finding,) = _told(_overflow(trained_job().initial().step()).step(non_finite=broken).step(non_finite=broken))
    assert (finding.severity, finding.confidence) == (ERROR, CERTAIN)


def test_a_loss_that_stays_nan_is_an_error_though_gradients_do_not_depend_on_the_weights() -> None:
    lost = {"loss": float("nan")}
    (finding,) = _told(_overflow(trained_job().initial().step()).step(**lost).step(**lost))
    assert (finding.severity, finding.confidence) == (ERROR, CERTAIN)
    assert "no optimizer used it" not in finding.title


def test_what_autograd_kept_names_the_layer_without_deep_looks() -> None:
    job = _overflow(trained_job().initial().step())
    job.note(NonFinite("infinity", "log after body (Linear)", step=2, backward=2), only=[0])
    broken = {0: ["head.weight"], 1: ["head.weight"]}
    (finding,) = _told(job.step(non_finite=broken))

    assert (
        "the loss is inf: the first infinity that autograd kept arose in log after body (Linear) on rank 0"
        in finding.title
    )
    assert finding.evidence["layer"] == "log after body (Linear)"
    assert "check-grads" not in finding.prescriptions[0].change


def test_while_the_job_runs_the_next_step_decides() -> None:
    job = _overflow(trained_job().initial().step())
    assert not _told(job, running=True)
    assert _told(job)[0].severity == ERROR


def test_what_the_ranks_wait_for_is_told_before_what_came_earlier() -> None:
    job = _overflow(trained_job().initial().step())
    for rank, log in enumerate(job.logs):
        log.call("barrier" if rank == 0 else "all_reduce", [] if rank == 0 else [8], returned_ns=0)
    told = examine(job.recording(), PLUGINS.checks.values()).findings
    assert [finding.code for finding in told][1:] == ["DD801"]
    assert told[0].code.startswith("DD1")


@pytest.mark.parametrize(
    ("before", "after", "severity"), [(0, 1, ERROR), (0, 2, NOTE), (3, 0, ERROR), (4, 0, NOTE), (3, 1, NOTE)]
)
def test_a_search_that_loses_one_of_its_trainings_goes_on(before: int, after: int, severity: int) -> None:
    """Rates that are too large for a trial are what a search over them tries; a training in stages is none."""
    job, broken = trained_job(ranks=1).initial(), {0: ["head.weight"]}
    for trial in range(before):
        job.step(optimizer=1 + trial).step(optimizer=1 + trial)
    _overflow(job).step(non_finite=broken, optimizer=before + 1)
    for trial in range(after):
        job.step(optimizer=before + 2 + trial).step(optimizer=before + 2 + trial)

    (finding,) = _told(job)

    assert finding.severity == severity
    assert finding.title.endswith("and others were finite") == (severity == NOTE)
