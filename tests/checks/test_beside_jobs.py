"""Statistics beside the wrapped model, on real jobs: told where they differ and what they make of the input is trained on."""

from __future__ import annotations

from pathlib import Path

import pytest
from jobs.beside import centred, coded, plain_statistics, statistics, two_stages
from jobs.replicas import watched
from test_replicas_jobs import found

from distdoctor.diagnosis.finding import LIKELY, NOTE, POSSIBLE, WARNING

pytestmark = pytest.mark.job


def test_local_statistics_beside_the_wrapped_model_that_one_rank_saves_are_told() -> None:
    recording, _ = watched(statistics, kind="local")
    (finding,) = [one for one in found(recording) if one.code.startswith("DD2")]

    assert (finding.code, finding.severity, finding.confidence, finding.ranks) == ("DD204", WARNING, LIKELY, (0, 1))
    assert "RunningScale.mean" in finding.title
    assert recording.sources[finding.place.path].splitlines()[finding.place.line - 1].strip().startswith("size =")
    assert [place.role for place in finding.places[-2:]] == ["goes through it", "saves"]


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


@pytest.mark.parametrize(("kind", "told"), [("local", True), ("synchronised", False), ("own norm", False)])
def test_a_codebook_that_follows_the_rows_of_one_rank_is_told(kind: str, told: bool) -> None:
    recording, _ = watched(coded, kind=kind)
    findings = [one for one in found(recording) if one.code.startswith("DD2")]

    assert [(one.code, one.severity, one.confidence) for one in findings] == [("DD204", WARNING, POSSIBLE)] * told
    for one in findings:
        assert "gain on rank 1 is lost" in one.title
        assert recording.sources[one.place.path].splitlines()[one.place.line - 1].strip().startswith("near =")


@pytest.mark.parametrize(("kind", "told"), [("local", True), ("synchronised", False), ("shown", False)])
def test_a_centre_that_each_rank_keeps_for_its_loss_is_told(kind: str, told: bool) -> None:
    recording, _ = watched(centred, kind=kind)
    findings = [one for one in found(recording) if one.code.startswith("DD2")]

    assert [(one.code, one.severity, one.confidence) for one in findings] == [("DD204", WARNING, LIKELY)] * told
    for one in findings:
        assert "CentredLoss.center" in one.title
        assert recording.sources[one.place.path].splitlines()[one.place.line - 1].strip().startswith("mean =")


@pytest.mark.parametrize("arrays", [False, True], ids=["tensors", "arrays"])
def test_local_statistics_in_a_plain_object_are_told(arrays: bool) -> None:
    recording, _ = watched(plain_statistics, kind="local", arrays=arrays)
    (finding,) = [one for one in found(recording) if one.code.startswith("DD2")]

    assert (finding.code, finding.severity, finding.confidence, finding.ranks) == ("DD204", WARNING, POSSIBLE, (0, 1))
    assert "PlainScale.mean" in finding.title
    line = recording.sources[finding.place.path].splitlines()[finding.place.line - 1]
    assert line.strip().startswith("self.mean = self.mean +")

    recording, _ = watched(plain_statistics, kind="local", arrays=arrays, saving=False)
    assert [one.severity for one in found(recording) if one.code.startswith("DD2")] == [NOTE]


@pytest.mark.parametrize("arrays", [False, True], ids=["tensors", "arrays"])
def test_a_scale_that_was_fitted_to_the_data_of_each_rank_is_a_note(arrays: bool) -> None:
    recording, _ = watched(plain_statistics, kind="fitted", arrays=arrays)
    (finding,) = [one for one in found(recording) if one.code.startswith("DD2")]

    assert (finding.code, finding.severity, finding.confidence, finding.ranks) == ("DD204", NOTE, POSSIBLE, (0, 1))
    assert "PlainScale.mean" in finding.title
    assert "# is made" in recording.sources[finding.place.path].splitlines()[finding.place.line - 1]


@pytest.mark.parametrize("kind", ["synchronised", "meter", "fitted together"])
def test_plain_statistics_of_all_ranks_and_such_as_nothing_is_scaled_by_are_left_alone(kind: str) -> None:
    recording, _ = watched(plain_statistics, kind=kind)
    assert [(one.code, one.title) for one in found(recording) if one.code.startswith("DD2")] == []


def test_statistics_are_looked_at_when_the_first_optimizer_has_stopped() -> None:
    recording, _ = watched(two_stages)
    (finding,) = [one for one in found(recording) if one.code == "DD204"]

    assert (finding.severity, finding.confidence) == (WARNING, LIKELY)
    assert "RunningScale.mean" in finding.title
