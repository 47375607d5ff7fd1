"""An interrupted job that begins with a file of the uninterrupted one is not compared with it, unless that is a cache of data."""

from __future__ import annotations

import pytest

from distdoctor.diagnosis.checkpoint.replayed import compare
from distdoctor.recording.recording import Recording
from distdoctor.recording.trace.events import Loading, Saving
from distdoctor.testing.gradients import trained_job

PATH = "/job/last.pt"


def interrupted(*, reads: str) -> Recording:
    job = trained_job(2).initial().note(Loading(reads, "torch.load", 0, 1), site="train.py:7 main")
    return job.step().note(Saving("/job/own.pt", "torch.save", 1, 1), site="train.py:40 main").step().recording()


@pytest.mark.parametrize(
    ("saved_at", "reads", "refused"),
    [(2, PATH, True), (0, PATH, False), (2, "/job/pretrained.pt", False)],
    ids=["a checkpoint", "a cache", "another file"],
)
def test_what_the_uninterrupted_job_saved_after_a_step_is_not_shared(saved_at: int, reads: str, refused: bool) -> None:
    whole = trained_job(2).initial().step().note(Saving(PATH, "torch.save", saved_at, 1)).step().step().recording()

    found = compare(
        whole, interrupted(reads=reads), trained_job(2).initial().step().step().recording(), ended="SIGKILL"
    )

    assert found.trouble.startswith(f"the interrupted job began with {PATH}, which") is refused
    assert refused or (found.trouble, found.at) == ("", 1)
