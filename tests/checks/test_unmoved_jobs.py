"""Parameters that keep every bit although they get gradients: on real jobs, ill ones and their twins."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from jobs import unmoved as jobs
from jobs.replicas import watched
from test_replicas_jobs import found

from distdoctor.diagnosis.finding import LIKELY, NOTE, WARNING

pytestmark = pytest.mark.job


def test_updates_that_sixteen_bits_round_away_are_told_with_the_parameters() -> None:
    recording, _ = watched(jobs.trained, dtype=torch.bfloat16)
    (finding,) = [one for one in found(recording) if one.code == "DD211"]

    assert (finding.severity, finding.confidence, finding.ranks) == (WARNING, LIKELY, (0, 1))
    assert finding.evidence["parameters"] == ["1.weight"]
    assert finding.title.endswith("updates in bfloat16 are rounded away")


def test_a_group_whose_rate_is_nothing_is_a_note() -> None:
    recording, _ = watched(jobs.trained, body_rate=0.0)
    (finding,) = [one for one in found(recording) if one.code == "DD211"]

    assert (finding.severity, finding.evidence["parameters"]) == (NOTE, ["0.weight", "0.bias"])
    assert finding.title.endswith("the rate of their group is 0")


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"autocast": True},
        {"rate": 1e-7},
        {"dtype": torch.bfloat16, "rate": 1e-4},
        {"rate": 0.0},
        {"by_batch": True, "rate": 0.05},
    ],
    ids=[
        "single",
        "autocast",
        "a small rate",
        "too short to tell",
        "no rate anywhere",
        "a bias before a batch normalization",
    ],
)
def test_what_moves_or_would_not_have_moved_is_silent(how: dict[str, Any]) -> None:
    recording, _ = watched(jobs.trained, **how)

    assert [one.title for one in found(recording) if one.code == "DD211"] == []
