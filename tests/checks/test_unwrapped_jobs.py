"""Replicas that no wrapper knows, on real jobs: told with at most `likely`, and their healthy twins left alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from jobs import federated
from jobs import unwrapped as jobs
from jobs.by_design import bf16_hook, elastic_averaging, heads_of_their_own, power_sgd, preconditioned_by_one
from jobs.replicas import experts_averaged, experts_with_replicas, watched
from test_replicas_jobs import found

from distdoctor.diagnosis.finding import CERTAIN, LIKELY, NOTE, POSSIBLE, WARNING

pytestmark = pytest.mark.job

# job, how it is ill, code, ranks, words of the title, how its twin is healthy
ILL: list[tuple[Callable[..., Any], dict[str, Any], str, tuple[int, ...], str, dict[str, Any]]] = [
    (jobs.averaged_in_pieces, {"edits": 1}, "DD203", (1,), "2.weight", {}),
    (jobs.averaged_in_pieces, {"loads": 1}, "DD201", (0, 1), "0.weight", {"scheduled": True}),
    (jobs.experts, {}, "DD220", (0, 1), "inner.weight", {"whole": True}),
    (jobs.sequence_region, {}, "DD221", (0, 1), "norm.weight", {"everything": True}),
    (jobs.tied_stages, {}, "DD221", (0, 1), "word", {"summed": True}),
    (jobs.one_key_for_all_queries, {}, "DD221", (0, 1), "1.key.weight", {"everything": True}),
]


@pytest.mark.parametrize(
    ("job", "ill", "code", "ranks", "words", "healthy"), ILL, ids=[f"{case[2]} {case[0].__name__}" for case in ILL]
)
def test_replicas_are_known_by_their_own_evidence(
    job: Callable[..., Any], ill: dict[str, Any], code: str, ranks: tuple[int, ...], words: str, healthy: dict[str, Any]
) -> None:
    recording, _ = watched(job, **ill)
    (finding,) = [one for one in found(recording) if one.severity != NOTE]

    assert (finding.code, finding.ranks, finding.confidence) == (code, ranks, LIKELY)
    assert words in finding.title

    recording, _ = watched(job, **healthy)
    assert [(one.code, one.title) for one in found(recording) if one.severity != NOTE] == []


def test_stages_that_all_begin_with_one_seed_share_no_layer() -> None:
    recording, _ = watched(jobs.tied_stages, alike=True)
    assert [one.title for one in found(recording) if one.code == "DD221"] == []


def test_heads_that_each_rank_trains_for_itself_on_the_same_batch_are_no_layer_that_is_shared() -> None:
    recording, _ = watched(jobs.heads_of_their_own)
    assert [(one.code, one.title) for one in found(recording) if one.severity != NOTE] == []


def test_experts_whose_gradients_are_the_sum_over_the_ranks_beside_averages_are_told() -> None:
    recording, _ = watched(experts_averaged, alone=True, whole=True)
    (finding,) = [one for one in found(recording) if one.severity != NOTE]

    assert (finding.code, finding.severity, finding.confidence, finding.ranks) == ("DD209", WARNING, LIKELY, (0, 1))
    assert finding.title.startswith("gradients of experts are 2 times too large beside all others: expert.")
    assert 'startswith("expert")' in recording.sources[finding.place.path].splitlines()[finding.place.line - 1]


def test_experts_that_are_averaged_over_their_replicas_alone_are_told_by_how_many_ranks_trade_rows() -> None:
    recording, _ = watched(experts_with_replicas, ranks=4)
    (finding,) = [one for one in found(recording) if one.severity != NOTE]

    assert (finding.code, finding.confidence, finding.ranks) == ("DD209", LIKELY, (0, 1, 2, 3))
    assert "2 times too large" in finding.title
    assert finding.title.endswith("averaged over ranks 0,2 alone")


@pytest.mark.parametrize("how", ["by_all", "one_batch", "within"])
def test_experts_that_are_divided_by_the_number_of_all_ranks_or_that_serve_one_loss_are_silent(how: str) -> None:
    recording, _ = watched(experts_with_replicas, ranks=4, **{how: True})

    assert [one.title for one in found(recording) if one.code == "DD209"] == []


def test_heads_of_their_own_beside_experts_are_no_experts() -> None:
    recording, _ = watched(experts_averaged, alone=True, heads=True)
    assert [one.title for one in found(recording) if one.code == "DD209"] == []


def test_a_sum_over_replicas_that_is_divided_by_the_rows_of_one_is_told() -> None:
    recording, _ = watched(jobs.centred)
    (finding,) = [one for one in found(recording) if one.severity != NOTE]

    assert (finding.code, finding.severity, finding.confidence, finding.ranks) == ("DD209", WARNING, LIKELY, (0, 1))
    assert "# of one rank" in recording.sources[finding.place.path].splitlines()[finding.place.line - 1]

    recording, _ = watched(jobs.centred, by_all=True)
    assert [(one.code, one.title) for one in found(recording) if one.severity != NOTE] == []


@pytest.mark.parametrize(
    ("how", "words"),
    [("a part", "# a part"), ("shown now and then", "# a part"), ("beside its blocks", "fully_shard(model.inner)")],
)
def test_a_part_of_the_model_beside_the_wrapper_is_told(how: str, words: str) -> None:
    recording, _ = watched(jobs.wrapped_in_part, how=how)
    (finding,) = found(recording)

    assert (finding.code, finding.ranks, finding.confidence) == ("DD219", (0, 1), LIKELY)
    assert "outer.weight" in finding.title
    assert words in recording.sources[finding.place.path].splitlines()[finding.place.line - 1]


@pytest.mark.parametrize(
    "how", ["whole", "ignored", "by hand", "data of its own", "rows are traded", "each a model of its own before"]
)
def test_what_is_averaged_or_each_ranks_own_beside_a_wrapper_is_left_alone(how: str) -> None:
    recording, _ = watched(jobs.wrapped_in_part, how=how)

    assert [(one.code, one.title) for one in found(recording)] == []


def test_of_what_a_wrapper_ignores_that_which_the_program_forgets_to_reduce_is_told() -> None:
    recording, _ = watched(jobs.ignored_tables)
    (finding,) = [one for one in found(recording) if one.severity != NOTE]

    assert (finding.code, finding.ranks, finding.confidence) == ("DD219", (0, 1), LIKELY)
    assert finding.title.startswith("table_adapter.weight and 1 more are trained on ranks 0-1 and never averaged")
    assert "# ignored" in recording.sources[finding.place.path].splitlines()[finding.place.line - 1]


@pytest.mark.parametrize("about", [{"prefix": "table."}, {"own": True}], ids=["the table alone", "all by hand"])
def test_what_a_wrapper_ignores_and_the_program_reduces_is_left_alone(about: dict[str, Any]) -> None:
    """Sums of sparse gradients are recorded like others."""
    recording, _ = watched(jobs.ignored_tables, **about)

    assert [(one.code, one.title) for one in found(recording) if one.severity != NOTE] == []
    assert not recording.troubles


def test_a_loss_divided_by_a_count_over_all_ranks_and_averaged_again_is_told() -> None:
    recording, _ = watched(jobs.divided_by_a_count)
    (finding,) = [one for one in found(recording) if one.severity != NOTE]

    assert (finding.code, finding.confidence, finding.evidence["ranks"]) == ("DD209", LIKELY, 2)
    assert "loss / count" in recording.sources[finding.place.path].splitlines()[finding.place.line - 1]

    recording, _ = watched(jobs.divided_by_a_count, times=True)
    assert [(one.code, one.title) for one in found(recording) if one.severity != NOTE] == []


def test_layers_that_are_unfrozen_after_the_list_of_what_is_averaged_was_made_are_told() -> None:
    recording, _ = watched(federated.clients)
    (finding,) = [one for one in found(recording) if one.severity != NOTE]
    lines = [recording.sources[one.site.path].splitlines()[one.site.line - 1].strip() for one in finding.places]

    assert (finding.code, finding.ranks, finding.confidence) == ("DD219", (0, 1), LIKELY)
    assert finding.evidence["parameters"] == ["0.weight", "0.bias"]
    assert lines == [
        "self.params = [p for _, p in named if p.requires_grad]  # as it is now",
        "dist.all_reduce(flat)",
        "optimizer.step()",
    ]


@pytest.mark.parametrize(
    "about", [{"anew": True}, {"own_head": True, "anew": True}, {"own_head": True, "unfreezes": False}]
)
def test_heads_of_each_clients_own_and_lists_that_are_made_anew_are_left_alone(about: dict[str, Any]) -> None:
    recording, _ = watched(federated.clients, **about)
    assert [(one.code, one.title) for one in found(recording) if one.severity != NOTE] == []


def test_a_hook_that_sums_in_its_second_stage_is_told() -> None:
    recording, _ = watched(jobs.sums_in_its_second_stage)
    (finding,) = [one for one in found(recording) if one.severity != NOTE]

    assert (finding.code, finding.confidence, finding.ranks) == ("DD209", LIKELY, (0, 1))
    assert finding.evidence["step"] == 32

    recording, _ = watched(jobs.sums_in_its_second_stage, divides_loss=True)
    assert [(one.code, one.title) for one in found(recording) if one.severity != NOTE] == []


def test_whole_layers_that_are_reduced_over_the_wrong_axis_of_a_mesh_are_told() -> None:
    recording, _ = watched(jobs.mesh_axes, ranks=4)
    (finding,) = [one for one in found(recording) if one.severity != NOTE]

    assert (finding.code, finding.confidence, finding.ranks) == ("DD221", LIKELY, (0, 1, 2, 3))
    assert "entrance.bias and 1 more are reduced over ranks 0-1, and not over ranks 0,2" in finding.title

    recording, _ = watched(jobs.mesh_axes, ranks=4, right=True)
    assert [(one.code, one.title) for one in found(recording) if one.severity != NOTE] == []


@pytest.mark.parametrize("wraps", [False, True])
def test_a_norm_that_is_reduced_over_the_copies_of_its_region_and_not_over_the_region_is_told(wraps: bool) -> None:
    recording, _ = watched(jobs.sequence_region_in_copies, ranks=4, wraps=wraps)
    (finding,) = [one for one in found(recording) if one.severity != NOTE]

    assert (finding.code, finding.confidence, finding.ranks) == ("DD221", LIKELY, (0, 1, 2, 3))
    assert "norm.weight" in finding.title
    assert finding.evidence["equal_over"] == [[0, 2], [1, 3]]

    recording, _ = watched(jobs.sequence_region_in_copies, ranks=4, wraps=wraps, everything=True)
    assert [(one.code, one.title) for one in found(recording) if one.severity != NOTE] == []


def test_losses_divided_by_counts_of_which_one_rank_always_has_far_fewer_are_told() -> None:
    recording, _ = watched(jobs.divided_by_its_own_count)
    (finding,) = [one for one in found(recording) if one.code == "DD209"]

    assert (finding.severity, finding.confidence, finding.evidence["counts"]) == (WARNING, LIKELY, {0: 30.0, 1: 70.0})
    assert "# of its own" in recording.sources[finding.place.path].splitlines()[finding.place.line - 1]

    recording, _ = watched(jobs.divided_by_its_own_count, alike=True)
    assert [one.title for one in found(recording) if one.code == "DD209"] == []


def test_a_reduction_in_16_bits_is_noted_with_its_error() -> None:
    recording, _ = watched(bf16_hook)
    (finding,) = [one for one in found(recording) if one.code == "DD805"]

    assert (finding.severity, finding.evidence["dtype"]) == (NOTE, "bfloat16")
    assert 0 < finding.evidence["median_error"] < finding.evidence["largest_error"] < 0.02  # type: ignore[operator]

    recording, _ = watched(power_sgd)
    assert [one.title for one in found(recording) if one.code == "DD805"] == []


@pytest.mark.parametrize("compare", [True, False])
def test_trials_from_one_seed_are_nobodys_replicas(compare: bool) -> None:
    recording, _ = watched(jobs.trials, ranks=3, compare=compare)

    assert [(one.code, one.title) for one in found(recording) if one.severity != NOTE] == []


def test_weights_that_pull_each_other_and_heads_of_each_ranks_own_are_left_alone() -> None:
    for job in (elastic_averaging, heads_of_their_own):
        assert [(one.code, one.title) for one in found(watched(job)[0]) if one.severity != NOTE] == []

    (finding,) = [one for one in found(watched(heads_of_their_own, alike=True)[0]) if one.code.startswith("DD20")]
    assert (finding.code, finding.confidence, finding.severity) == ("DD202", POSSIBLE, NOTE)


def test_gradients_that_are_the_same_but_for_rounding_are_a_note_and_turned_ones_an_error() -> None:
    recording, _ = watched(preconditioned_by_one)
    (finding,) = [one for one in found(recording) if one.code == "DD202"]
    assert (finding.severity, finding.confidence) == (NOTE, LIKELY)
    assert 0 < finding.evidence["relative_difference"] < 1e-4
    assert [(one.code, one.title) for one in found(recording) if one.severity != NOTE] == []

    recording, _ = watched(preconditioned_by_one, sign=-1.0)
    (finding,) = [one for one in found(recording) if one.severity != NOTE]
    assert (finding.code, finding.confidence) == ("DD202", CERTAIN)


@pytest.mark.parametrize(
    ("by", "words", "condition"),
    [
        ("sparse", "table.weight", "parameter.grad.is_sparse:"),
        ("matrices", "inner.bias and 1 more", "p.grad.dim() > 1"),
    ],
)
def test_gradients_that_a_loop_skips_for_their_form_are_told_with_the_condition(
    by: str, words: str, condition: str
) -> None:
    recording, _ = watched(jobs.tower, by=by)
    (finding,) = [one for one in found(recording) if one.severity != NOTE]

    assert (finding.code, finding.confidence, finding.ranks) == ("DD202", LIKELY, (0, 1))
    assert f"the gradients of {words} are not reduced" in finding.title
    assert condition in recording.sources[finding.place.path].splitlines()[finding.place.line - 1]

    recording, _ = watched(jobs.tower, by=by, all_of_them=True)
    assert [(one.code, one.title) for one in found(recording) if one.code.startswith("DD2")] == []


@pytest.mark.parametrize("by", ["named", "optimizer"])
def test_layers_that_a_loop_skips_by_their_names_or_by_their_optimizer_are_no_more_than_a_note(by: str) -> None:
    recording, _ = watched(jobs.tower, by=by)
    (finding,) = [one for one in found(recording) if one.code.startswith("DD2")]
    assert (finding.code, finding.confidence, finding.severity) == ("DD202", POSSIBLE, NOTE)

    recording, _ = watched(jobs.tower, by=by, broadcasts=False)
    assert [(one.code, one.title) for one in found(recording) if one.code.startswith("DD2")] == []


def test_what_a_word_that_is_meant_for_experts_leaves_out_as_well_is_told_and_experts_are_not() -> None:
    recording, _ = watched(jobs.mixture, router="expert_gate")
    (finding,) = [one for one in found(recording) if one.severity != NOTE]

    assert (finding.code, finding.confidence) == ("DD202", LIKELY)
    assert finding.evidence["parameters"] == ["expert_gate.weight", "expert_gate.bias"]
    assert '"expert" not in name' in recording.sources[finding.place.path].splitlines()[finding.place.line - 1]

    recording, _ = watched(jobs.mixture, router="gate")
    assert [(one.code, one.title) for one in found(recording) if one.code.startswith("DD2")] == []
