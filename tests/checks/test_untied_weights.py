"""Weights that were one until a state was loaded with assign=True: in the probe, and as a finding."""

from __future__ import annotations

import pytest
from jobs import checkpoint as jobs
from jobs.replicas import watched
from sick import PLUGINS

from distdoctor.diagnosis.check import NotApplicable
from distdoctor.diagnosis.finding import Finding
from distdoctor.recording.recording import Recording
from distdoctor.recording.trace.events import Untied
from distdoctor.testing.gradients import PARAMETERS, trained_job


def untied(recording: Recording) -> list[Finding]:
    try:
        return [one for one in PLUGINS.checks["DD706"].look(recording) if "untied" in one.title]
    except NotApplicable:  # nothing else was resumed
        return []


def told(*names: str) -> list[Finding]:
    job = trained_job(2).note(Untied("Tied", names), site="train.py:12 build").initial().step()
    return untied(job.recording())


def test_names_that_the_optimizer_holds_as_two_are_told() -> None:
    (finding,) = told("body.weight", "head.weight")

    assert (finding.confidence, finding.ranks, finding.place.line) == ("likely", (0, 1), 12)
    assert finding.prescriptions[0].slug == "tie-again"


def test_names_that_were_tied_again_are_silent() -> None:
    """The optimizer holds one of them then."""
    assert "lm_head.weight" not in PARAMETERS
    assert told("body.weight", "lm_head.weight") == []


@pytest.mark.job
def test_a_load_that_unties_is_told_and_one_that_is_tied_again_is_not() -> None:
    for ties_again in (False, True):
        recording, _ = watched(jobs.loaded_into_tied, ranks=1, ties_again=ties_again)
        assert [one.title for one in untied(recording)] == (
            []
            if ties_again
            else ["load_state_dict(assign=True) untied head.weight from embed.weight: they train apart now"]
        )
