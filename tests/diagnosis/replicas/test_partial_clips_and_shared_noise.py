"""Clipping in micro-batches, and noise that becomes the same: what is told, and what looks like it and is not."""

from __future__ import annotations

import pytest
from sick import fresh_diagnosis_of, own

from distdoctor.diagnosis.finding import CERTAIN, ERROR, LIKELY, WARNING
from distdoctor.recording.trace.events import Averaging, BackwardRng, ClipNorm
from distdoctor.testing.gradients import TrainedJob, trained_job


def test_clipping_in_each_micro_batch_is_told_where_only_the_last_norm_is_the_same() -> None:
    (finding,) = fresh_diagnosis_of(own("DD215", "sick_in_each_micro_batch")).findings

    assert (finding.code, finding.severity, finding.confidence, finding.ranks) == ("DD215", ERROR, CERTAIN, (0, 1))
    assert finding.title == (
        "step 1: each of ranks 0-1 clips what its micro-batches have accumulated so far by its own norm, before averaging"
    )
    assert finding.evidence["steps_seen"] == 2


@pytest.mark.parametrize(
    "about", [{}, {"backwards": 2, "synced": 1, "unsynced": 1}], ids=["averaged at once", "accumulated"]
)
def test_one_line_that_clips_several_models_is_not_accused_for_one_that_each_rank_trains_alone(
    about: dict[str, int],
) -> None:
    job = trained_job(2)
    job.note(Averaging((0, 1), "DistributedDataParallel")).initial()
    for step in (1, 2):
        for norms in ((2.0, 2.0), (1.5, 2.5)):
            for rank, norm in enumerate(norms):
                job.note(ClipNorm(whole=False, step=step, norm=norm), site="train.py:32 train", only=[rank])
        job.step(**about)

    assert [one.code for one in fresh_diagnosis_of(job.recording()).findings] == []


def noisy(*windows: tuple[str, str, int]) -> TrainedJob:
    job, number = trained_job(2), 0
    job.note(Averaging((0, 1), "DistributedDataParallel")).initial()
    for zero, one, passes in windows:
        for _ in range(passes):
            number += 1
            for rank, state in enumerate((zero, one)):
                begun = BackwardRng(f"{state}{number}", "drop (Dropout 0.1)", number)
                job.note(begun, site="train.py:12 load" if number > 3 else "", only=[rank])
            job.step()
    return job


def test_noise_that_was_each_ranks_own_until_a_resume_is_told_with_the_line_that_sets_the_state() -> None:
    (finding,) = fresh_diagnosis_of(own("DD216", "sick_since_a_resume")).findings

    assert (finding.code, finding.severity, finding.confidence, finding.ranks) == ("DD216", WARNING, LIKELY, (0, 1))
    assert finding.title == (
        "since backward pass 4, dropout draws the same masks (drop (Dropout 0.1)) on all of ranks 0-1, which drew different "
        "ones before"
    )
    assert (finding.place.path, finding.place.line) == ("/job/train.py", 12)


def test_noise_that_is_the_same_for_a_while_or_for_one_pass_is_not_told() -> None:
    for_a_while = noisy(("a", "b", 3), ("c", "c", 3), ("d", "e", 3))
    once = noisy(("a", "b", 3), ("c", "c", 1))

    assert [one.code for job in (for_a_while, once) for one in fresh_diagnosis_of(job.recording()).findings] == []
