"""Replicas that no wrapper knows, on real jobs: told with at most `likely`, and their healthy twins left alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from jobs import unwrapped as jobs
from jobs.replicas import watched
from test_gradients_jobs import found

from distdoctor.diagnosis.finding import LIKELY, NOTE

pytestmark = pytest.mark.job

# job, how it is ill, code, ranks, words of the title, how its twin is healthy
ILL: list[tuple[Callable[..., Any], dict[str, Any], str, tuple[int, ...], str, dict[str, Any]]] = [
    (jobs.averaged_in_pieces, {"edits": 1}, "DD203", (1,), "2.weight", {}),
    (jobs.averaged_in_pieces, {"loads": 1}, "DD201", (0, 1), "0.weight", {"scheduled": True}),
    (jobs.experts, {}, "DD220", (0, 1), "inner.weight", {"whole": True}),
    (jobs.sequence_region, {}, "DD221", (0, 1), "norm.weight", {"everything": True}),
]


@pytest.mark.parametrize(("job", "ill", "code", "ranks", "words", "healthy"), ILL, ids=[f"{case[2]}" for case in ILL])
def test_replicas_are_known_by_their_own_evidence(
    job: Callable[..., Any], ill: dict[str, Any], code: str, ranks: tuple[int, ...], words: str, healthy: dict[str, Any]
) -> None:
    recording, _ = watched(job, **ill)
    (finding,) = [one for one in found(recording) if one.severity != NOTE]

    assert (finding.code, finding.ranks, finding.confidence) == (code, ranks, LIKELY)
    assert words in finding.title

    recording, _ = watched(job, **healthy)
    assert [(one.code, one.title) for one in found(recording) if one.severity != NOTE] == []


def test_trials_from_one_seed_are_nobodys_replicas() -> None:
    recording, _ = watched(jobs.trials, ranks=3)

    assert [(one.code, one.title) for one in found(recording) if one.severity != NOTE] == []
