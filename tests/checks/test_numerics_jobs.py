"""The checks on numerics and scale, each on a real job that is ill; healthy ones are in test_replicas_jobs."""

from __future__ import annotations

from typing import Any

import pytest
from jobs import replicas as jobs
from test_replicas_jobs import found, only

from distdoctor.diagnosis.finding import CERTAIN, LIKELY, NOTE, POSSIBLE

pytestmark = pytest.mark.job


@pytest.mark.parametrize(
    ("about", "layer", "where"),
    [
        ({"where": "forward"}, "1 (Breaking)", "forward"),
        ({"where": "input"}, "0 (Linear)", "forward"),
        ({"where": "between"}, "2 (Linear)", "forward"),
        ({"where": "backward"}, "0.bias", "gradient"),
        ({"where": "forward", "who": 0, "at": 1}, "1 (Breaking)", "forward"),
    ],
    ids=["forward", "input", "between", "backward", "first step"],
)
def test_the_first_nan_is_named_with_rank_step_and_layer(about: dict[str, Any], layer: str, where: str) -> None:
    recording, _ = jobs.watched(jobs.first_nan, **about)
    finding = only(recording)
    assert (finding.code, finding.ranks, finding.confidence) == ("DD801", (about.get("who", 1),), CERTAIN)
    assert (finding.evidence["step"], finding.evidence["layer"], finding.evidence["where"]) == (
        about.get("at", 3),
        layer,
        where,
    )
    words = {"input": "how it is read and normalized", "between": "computed between 1 (Breaking) and 2 (Linear)"}
    assert words.get(about["where"], "") in (finding.prescriptions[0].change or "")


def test_without_deep_looks_the_rank_and_step_of_a_nan_loss_are_still_named() -> None:
    recording, _ = jobs.watched(jobs.first_nan, deep=False)
    finding = only(recording)
    assert (finding.code, finding.ranks, finding.evidence["step"]) == ("DD801", (1,), 3)


@pytest.mark.parametrize("at", [1, 3, 40], ids=["first step", "third step", "a step that is not looked at"])
def test_without_deep_looks_a_nan_of_backward_is_told_with_rank_step_and_layer(at: int) -> None:
    recording, _ = jobs.watched(jobs.first_nan, deep=False, where="backward", at=at, steps=50)
    finding = only(recording)
    assert (finding.code, finding.ranks, finding.confidence) == ("DD801", (1,), CERTAIN)
    assert (finding.evidence["step"], finding.evidence["layer"]) == (at, "0.bias")


def test_a_loss_that_grew_out_of_all_bounds_is_told_as_divergence_and_not_as_a_batch() -> None:
    recording, _ = jobs.watched(jobs.diverging)
    finding = only(recording)

    assert (finding.code, finding.ranks, finding.confidence) == ("DD801", (0, 1), CERTAIN)
    assert "the training had diverged: the loss of rank 0 had grown from" in finding.why
    assert "too large a learning rate" in finding.prescriptions[0].change


def test_a_nan_of_backward_that_the_job_leaves_out_is_a_note() -> None:
    recording, _ = jobs.watched(jobs.first_nan, deep=False, where="backward", at=20, steps=40, skips=True)
    finding = only(recording)
    assert (finding.code, finding.severity, finding.ranks) == ("DD801", NOTE, (1,))


@pytest.mark.parametrize(
    ("divisor", "error", "words"),
    [(1.0, 4.0, "# of each micro-step"), (16.0, 0.25, "# once more")],
    ids=["never divided", "divided twice"],
)
def test_a_wrong_factor_of_accumulation_is_named_as_that_factor(divisor: float, error: float, words: str) -> None:
    recording, _ = jobs.watched(jobs.undivided, divisor=divisor)
    finding = only(recording)
    assert (finding.code, finding.evidence["error"], finding.confidence) == ("DD208", error, LIKELY)
    assert finding.place.line == jobs.line(words)


def test_clipping_scaled_gradients_is_found_at_its_line() -> None:
    recording, _ = jobs.watched(jobs.clipped_while_scaled)
    finding = only(recording)
    assert (finding.code, finding.place.line) == ("DD803", jobs.line("# still scaled"))


def test_a_scaler_that_skips_on_one_rank_alone_is_found() -> None:
    recording, _ = jobs.watched(jobs.scaler_by_rank)
    finding = only(recording)
    assert (finding.code, finding.evidence["step"], finding.evidence["skipped"]) == ("DD802", 3, {0: 0, 1: 1})


def test_scalers_of_ranks_that_step_pieces_of_one_model_must_agree() -> None:
    recording, _ = jobs.watched(jobs.scaler_by_piece)
    finding = only(recording)
    assert (finding.code, finding.ranks, finding.confidence) == ("DD802", (1,), LIKELY)
    assert finding.place.line == jobs.line("# by its own piece")
    assert "found_inf" in finding.prescriptions[0].change

    healthy, _ = jobs.watched(jobs.scaler_by_piece, agreed=True)
    assert found(healthy) == []


@pytest.mark.parametrize(
    ("job", "factor", "words"),
    [
        (jobs.summed_by_hand, 2.0, "# and nobody divides"),
        (jobs.summed_in_buckets, 2.0, "# the result of the division is dropped"),
        (jobs.averaged_twice, 0.5, "optimizer.step()"),
    ],
    ids=["summed", "summed in buckets", "divided twice"],
)
def test_a_wrong_factor_of_the_reduction_is_named_as_that_factor(job: Any, factor: float, words: str) -> None:
    recording, _ = jobs.watched(job)
    finding = only(recording)
    assert (finding.code, finding.ranks, finding.confidence) == ("DD209", (0, 1), CERTAIN)
    assert finding.evidence["factor"] == pytest.approx(factor, rel=1e-3)
    assert words in recording.sources[finding.place.path].splitlines()[finding.place.line - 1]


def test_gradients_that_pile_up_are_found() -> None:
    recording, _ = jobs.watched(jobs.never_zeroed)
    finding = only(recording)
    assert (finding.code, finding.ranks, finding.confidence) == ("DD212", (0, 1), CERTAIN)
    assert finding.places[0].site.line == jobs.line("# onto the old ones")


def test_gradients_of_a_rank_that_is_alone_pile_up_too() -> None:
    recording, _ = jobs.watched(jobs.never_zeroed_alone, ranks=1, deep=False)
    finding = only(recording)
    assert (finding.code, finding.ranks, finding.confidence) == ("DD212", (0,), CERTAIN)
    assert finding.evidence["steps"] == [2, 3, 4, 5, 6]

    recording, _ = jobs.watched(jobs.never_zeroed_alone, ranks=1, deep=False, fading=True)
    assert found(recording) == []


def test_gradients_of_shards_that_pile_up_are_found() -> None:
    recording, _ = jobs.watched(jobs.never_zeroed_shards)
    finding = only(recording)
    assert (finding.code, finding.ranks, finding.confidence) == ("DD212", (0, 1), CERTAIN)
    assert finding.evidence["steps"] == [2, 3, 4, 5, 6]


def test_buffers_and_running_statistics_that_a_wrapper_was_told_not_to_broadcast_are_a_note() -> None:
    recording, _ = jobs.watched(jobs.own_buffers)
    finding = only(recording)
    assert (finding.code, finding.severity, finding.confidence) == ("DD204", NOTE, POSSIBLE)
    assert finding.evidence["buffers"] == ["seen"]
    recording, _ = jobs.watched(jobs.plain, norm=True, broadcast_buffers=False)
    finding = only(recording)
    assert (finding.code, finding.severity) == ("DD204", NOTE)
    assert finding.evidence["buffers"] == ["norm.running_mean", "norm.running_var"]


def test_buffers_that_are_broadcast_before_each_forward_are_left_alone() -> None:
    recording, _ = jobs.watched(jobs.own_buffers, broadcast=True)
    assert found(recording) == []


def test_buffers_that_the_script_averages_itself_are_left_alone() -> None:
    recording, _ = jobs.watched(jobs.own_buffers, merged=True)
    assert found(recording) == []


def test_a_shard_that_is_left_out_of_steps_by_its_own_rank_alone_is_told_at_what_decides() -> None:
    recording, _ = jobs.watched(jobs.overflow_by_shard)
    finding = only(recording)
    assert (finding.code, finding.ranks, finding.confidence) == ("DD210", (1,), LIKELY)
    assert finding.evidence["steps"] == {0: 30, 1: 20}
    assert finding.place.line == jobs.line("# of this shard")


@pytest.mark.parametrize("about", [{"decides": "all"}, {"decides": "first"}], ids=["together", "one for all"])
def test_shards_that_are_left_out_together_and_a_rank_that_steps_for_all_are_left_in_peace(
    about: dict[str, Any],
) -> None:
    recording, _ = jobs.watched(jobs.overflow_by_shard, **about)
    assert [one.code for one in found(recording) if one.severity != NOTE] == []
