"""Statistics beside the wrapped model, on real jobs: told where they differ and what they make of the input is trained on."""

from __future__ import annotations

from pathlib import Path

import pytest
from jobs.beside import centred, statistics
from jobs.replicas import watched
from test_replicas_jobs import found

from distdoctor.diagnosis.finding import LIKELY, NOTE, WARNING

pytestmark = pytest.mark.job


def test_local_statistics_beside_the_wrapped_model_that_one_rank_saves_are_told() -> None:
    recording, _ = watched(statistics, kind="local")
    (finding,) = [one for one in found(recording) if one.code.startswith("DD2")]

    assert (finding.code, finding.severity, finding.confidence, finding.ranks) == ("DD204", WARNING, LIKELY, (0, 1))
    assert "RunningScale.mean" in finding.title
    assert recording.sources[finding.place.path].splitlines()[finding.place.line - 1].strip().startswith("size =")
    assert [place.role for place in finding.places[-2:]] == ["goes through it, with gradients", "saves"]


def test_local_statistics_that_nobody_or_everybody_saves_are_a_note() -> None:
    for saving in ((), (0, 1)):
        recording, _ = watched(statistics, kind="local", saving=saving)
        assert [one.severity for one in found(recording) if one.code.startswith("DD2")] == [NOTE]


@pytest.mark.parametrize("kind", ["local", "synchronised"])
def test_statistics_that_are_made_after_some_steps_are_looked_at_too(kind: str) -> None:
    recording, _ = watched(statistics, kind=kind, late=3)
    told = [one for one in found(recording) if one.code.startswith("DD2")]

    assert [(one.code, one.severity, one.evidence["step"]) for one in told] == [("DD204", WARNING, 4)] * (
        kind == "local"
    )


@pytest.mark.parametrize("kind", ["synchronised", "first", "unused", "others"])
def test_statistics_of_all_ranks_of_an_owner_and_of_nobodys_input_are_left_alone(kind: str) -> None:
    recording, _ = watched(statistics, kind=kind)
    assert [(one.code, one.title) for one in found(recording) if one.code.startswith("DD2")] == []


@pytest.mark.parametrize("together", [False, True], ids=["rank 0 saves", "all save"])
@pytest.mark.parametrize("where", ["beside", "inside"])
def test_local_statistics_of_a_sharded_model_are_told_where_one_ranks_are_saved(
    where: str, together: bool, tmp_path: Path
) -> None:
    recording, _ = watched(statistics, kind="local", sharded=where, folder=str(tmp_path) if together else "")
    (finding,) = [one for one in found(recording) if one.code.startswith("DD2")]

    assert (finding.code, finding.severity, finding.confidence, finding.ranks) == ("DD204", WARNING, LIKELY, (0, 1))
    assert ("0.mean" if where == "inside" else "RunningScale.mean") in finding.title
    assert recording.sources[finding.place.path].splitlines()[finding.place.line - 1].strip().startswith("size =")


@pytest.mark.parametrize(
    ("where", "kind"), [("beside", "synchronised"), ("inside", "synchronised"), ("inside", "first")]
)
def test_statistics_of_a_sharded_model_that_follow_all_ranks_or_one_are_left_alone(where: str, kind: str) -> None:
    recording, _ = watched(statistics, kind=kind, sharded=where)
    assert [(one.code, one.title) for one in found(recording) if one.code.startswith("DD2")] == []


def test_a_running_centre_in_a_loss_that_no_wrapper_holds_is_told_unless_it_follows_all_ranks() -> None:
    recording, _ = watched(centred, synchronised=False)
    (finding,) = [one for one in found(recording) if one.code.startswith("DD2")]

    assert (finding.code, finding.severity, finding.confidence, finding.ranks) == ("DD204", WARNING, LIKELY, (0, 1))
    assert "CentredLoss.centre" in finding.title
    assert "mean" in recording.sources[finding.place.path].splitlines()[finding.place.line - 1]

    recording, _ = watched(centred, synchronised=True)
    assert [(one.code, one.title) for one in found(recording) if one.code.startswith("DD2")] == []
