"""Replicas that train on the same batches where no loader tells, on real jobs that are ill and on their healthy twins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from jobs import own_batches as jobs
from jobs.replicas import line, watched

from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import LIKELY, POSSIBLE, WARNING, Confidence, Finding
from distdoctor.plugins import load

pytestmark = pytest.mark.job


def found(target: Callable[..., Any], **about: Any) -> list[Finding]:
    """What the installed checks on data and checkpoints say."""
    recording, _ = watched(target, deep=False, **about)
    checks = [check for check in load().checks.values() if check.code[:3] in ("DD3", "DD7")]
    diagnosis = examine(recording, checks)
    assert [one for one in diagnosis.not_examined if "failed" in one.reason] == []
    return list(diagnosis.findings)


@pytest.mark.parametrize(
    ("target", "about", "confidence"),
    [
        (jobs.drawn, {}, LIKELY),
        (jobs.drawn, {"dropout": 0.1}, LIKELY),
        (jobs.sharded, {"by_rank": False}, LIKELY),
        (jobs.averaged_by_hand, {"by_rank": False}, POSSIBLE),
    ],
    ids=["drawn", "with dropout", "sharded", "averaged by hand"],
)
def test_ranks_that_draw_the_same_batches_are_found(
    target: Callable[..., Any], about: dict[str, Any], confidence: Confidence
) -> None:
    (finding,) = found(target, **about)
    assert (finding.code, finding.ranks, finding.confidence, finding.severity) == ("DD306", (0, 1), confidence, WARNING)
    assert finding.title == "ranks 0-1 train on the same batches: each step averages 2 equal gradients"
    if target is jobs.averaged_by_hand:
        assert "their losses and their own gradients are equal" in finding.why


@pytest.mark.parametrize(
    ("target", "about"),
    [
        (jobs.drawn, {"by_rank": True}),
        (jobs.drawn, {"fresh": False}),
        (jobs.sharded, {"by_rank": True}),
        (jobs.averaged_by_hand, {"by_rank": True, "one_loss": True}),
        (jobs.shared_out, {}),
        (jobs.resumed, {"own": True}),
    ],
    ids=["drawn", "one batch", "sharded", "one loss", "parts of a batch", "resumed"],
)
def test_ranks_that_are_meant_to_read_what_they_read_are_left_alone(
    target: Callable[..., Any], about: dict[str, Any]
) -> None:
    assert found(target, **about) == []


def test_ranks_that_go_on_where_one_ranks_data_stood_are_found_with_the_load() -> None:
    (finding,) = found(jobs.resumed, own=False)
    assert (finding.code, finding.ranks, finding.confidence) == ("DD706", (0, 1), LIKELY)
    assert finding.place.line == line("saved = torch.load(path)", jobs.__file__)
    assert "since a checkpoint was read" in finding.title


def test_shares_of_orders_of_each_ranks_own_are_told_without_a_loader() -> None:
    (finding,) = found(jobs.permuted)

    assert (finding.code, finding.severity, finding.confidence, finding.ranks) == ("DD303", WARNING, POSSIBLE, (0, 1))
    assert 35 < finding.evidence["shared"] < 65
    assert finding.places[0].role.startswith("seeds each rank its own way")


@pytest.mark.parametrize(
    "about", [{"by": "all"}, {"by": "replaced"}, {"share": 1}], ids=["shares", "replaced", "all data"]
)
def test_shares_of_one_order_draws_with_replacement_and_all_data_in_an_own_order_are_left_alone(about: Any) -> None:
    assert [one for one in found(jobs.permuted, **about) if one.code == "DD303"] == []


def test_a_rank_that_is_given_its_last_batch_again_and_again_is_told_with_what_keeps_the_error() -> None:
    (finding,) = found(jobs.bridged)
    assert (finding.code, finding.ranks, finding.confidence) == ("DD310", (1,), LIKELY)
    assert finding.place.line == line("# kept to itself", jobs.__file__)
    assert "from step 8 on" in finding.title


@pytest.mark.parametrize(
    "about",
    [{"ends": "none"}, {"ends": "all"}, {"weight": 0.0}],
    ids=["to its end", "all ranks", "a batch that counts for nothing"],
)
def test_batches_that_all_repeat_or_that_count_for_nothing_are_left_alone(about: dict[str, Any]) -> None:
    assert found(jobs.bridged, **about) == []


@pytest.mark.parametrize("cuts", [False, True])
def test_rows_that_fill_up_to_the_longest_rank_are_told_where_they_stay(cuts: bool) -> None:
    findings = found(jobs.gathers_uneven, cuts=cuts)
    told = [(one.code, one.ranks, one.confidence, one.place.line) for one in findings if one.code == "DD309"]
    at = line("# with what fills them up", jobs.__file__)
    assert told == ([] if cuts else [("DD309", (0, 1), POSSIBLE, at)])
