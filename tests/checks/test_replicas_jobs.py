"""The checks on replicas, each on a real job that is ill and on the healthy ones that look most like it."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from jobs import bit_flips as bit_flip_jobs
from jobs import kept_best
from jobs import replicas as jobs

from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import CERTAIN, LIKELY, NOTE, POSSIBLE, WARNING, Finding
from distdoctor.plugins import load
from distdoctor.recording.recording import Recording

pytestmark = pytest.mark.job


def found(recording: Recording) -> list[Finding]:
    """What the installed checks on gradients and numerics say."""
    checks = [check for check in load().checks.values() if check.code.startswith(("DD2", "DD8"))]
    diagnosis = examine(recording, checks)
    assert [one for one in diagnosis.not_examined if "failed" in one.reason] == []
    return list(diagnosis.findings)


def only(recording: Recording) -> Finding:
    findings = found(recording)
    assert len(findings) == 1, [(one.code, one.title) for one in findings]
    return findings[0]


# job, code, ranks, step, first parameter, a word of the line that is pointed at
ILL: list[tuple[Callable[..., Any], dict[str, Any], str, tuple[int, ...], int, str, str]] = [
    (jobs.different_seeds, {}, "DD201", (0, 1), 0, "body.weight", "torch.manual_seed(rank)"),
    (jobs.forward_through_module, {}, "DD206", (0, 1), 1, "body.weight", "model.module(inputs)"),
    (jobs.forward_through_module, {"since": 4}, "DD206", (0, 1), 4, "body.weight", "model.module(inputs)"),
    (jobs.two_models_in_turns, {}, "DD206", (0, 1), 1, "weight", "generator.module(inputs)"),
    (jobs.misaligned_no_sync, {}, "DD207", (0, 1), 1, "body.weight", "model.no_sync()"),
    (jobs.everything_in_no_sync, {}, "DD207", (0, 1), 1, "body.weight", "model.no_sync()"),
    (jobs.forward_inside_backward_outside, {}, "DD207", (0, 1), 1, "body.weight", "model.no_sync()"),
    (jobs.edited_weight, {}, "DD203", (0,), 4, "head.weight", "optimizer.step()"),
    (jobs.edited_weight, {"who": 1, "at": 1}, "DD203", (1,), 2, "head.weight", "optimizer.step()"),
    (jobs.edited_in_stages, {}, "DD203", (1,), 1, "head.weight", "optimizer.step()"),
    (jobs.edited_in_stages, {"at": 2}, "DD203", (1,), 3, "head.weight", "optimizer.step()"),
    (jobs.reloaded_on_one_rank, {}, "DD203", (1,), 5, "body.weight", "optimizer.step()"),
    (jobs.flipped_bit, {}, "DD214", (1,), 4, "body.weight", "optimizer.step()"),
    (jobs.flipped_bit, {"bit": 31, "who": 0}, "DD214", (0,), 4, "body.weight", "optimizer.step()"),
    (jobs.flipped_bit, {"where": "grad"}, "DD214", (0, 1), 3, "body.weight", "optimizer.step()"),
    (jobs.unfrozen_after_wrapping, {}, "DD219", (0, 1), 1, "body.weight", "inside.body.requires_grad_(True)"),
    (jobs.unfrozen_after_some_steps, {}, "DD219", (0, 1), 4, "body.weight", "# from now on"),
    (jobs.layer_replaced_after_wrapping, {}, "DD219", (0, 1), 1, "head.weight", "# after wrapping"),
    (jobs.converted_after_wrapping, {}, "DD219", (0, 1), 1, "body.weight", "model.double()"),
    (jobs.learning_rate_by_rank, {}, "DD218", (0, 1), 4, "body.weight", '["lr"]'),
    (jobs.noisy_gradients, {}, "DD202", (0, 1), 2, "head.bias", "optimizer.step()"),
    (jobs.averaged_in_one_pass, {}, "DD202", (0, 1), 1, "body.weight", "# the pass that is reduced"),
    (jobs.edited_state, {}, "DD205", (1,), 4, "head.weight", "optimizer.step()"),
]


@pytest.mark.parametrize(
    ("job", "about", "code", "ranks", "step", "parameter", "words"),
    ILL,
    ids=[f"{case[0].__name__}{number}" for number, case in enumerate(ILL)],
)
def test_an_illness_is_named_with_step_parameter_rank_and_line(
    job: Callable[..., Any],
    about: dict[str, Any],
    code: str,
    ranks: tuple[int, ...],
    step: int,
    parameter: str,
    words: str,
) -> None:
    recording, _ = jobs.watched(job, **about)

    finding = only(recording)

    assert (finding.code, finding.ranks, finding.evidence["step"]) == (code, ranks, step)
    assert finding.evidence["parameters"][0] == parameter  # type: ignore[index]
    assert words in recording.sources[finding.place.path].splitlines()[finding.place.line - 1]
    assert finding.confidence == (LIKELY if code == "DD214" else CERTAIN)


def test_weights_that_go_round_in_a_ring_are_no_model_that_nobody_averages() -> None:
    recording, _ = jobs.watched(jobs.never_wrapped, hands_on="weights")
    assert [one.code for one in found(recording)] == []


@pytest.mark.parametrize("hands_on", ["", "keys"])
def test_a_model_that_was_never_wrapped_is_found_where_the_ranks_belong_together(hands_on: str) -> None:
    recording, _ = jobs.watched(jobs.never_wrapped, hands_on=hands_on)
    finding = only(recording)
    assert (finding.code, finding.ranks, finding.confidence) == ("DD206", (0, 1), LIKELY)
    assert finding.evidence["largest_collective_bytes"] == 4
    assert finding.place.line == jobs.line("# nobody averages")


def test_ranks_that_train_one_model_and_call_nothing_are_told() -> None:
    recording, _ = jobs.watched(jobs.never_wrapped, shows=False)
    finding = only(recording)
    assert (finding.code, finding.severity, finding.ranks) == ("DD206", WARNING, (0, 1))
    assert finding.confidence == POSSIBLE  # the source speaks of ranks
    assert finding.place.line == jobs.line("# nobody averages")

    speechless = {path: re.sub("(?i)rank", "number", text) for path, text in recording.sources.items()}
    assert only(replace(recording, sources=speechless)).confidence == LIKELY
    assert only(replace(recording, sources={})).confidence == POSSIBLE  # nobody knows
    assert found(replace(recording, job=replace(recording.job, running=True))) == []


def test_a_step_that_each_rank_leaves_out_for_itself_is_told_though_the_gradients_are_reduced() -> None:
    recording, digests = jobs.watched(jobs.overflow_by_rank)
    finding = only(recording)

    assert digests[0] != digests[1]
    assert (finding.code, finding.ranks, finding.confidence) == ("DD210", (0,), LIKELY)
    assert "step 2: rank 1 took an optimizer step that rank 0 skipped" in finding.title
    assert finding.place.line == jobs.line("# unless this rank overflows")


def test_momenta_of_ranks_that_join_early_are_told_behind_the_join() -> None:
    recording, _ = jobs.watched(jobs.joined_epochs)
    finding = only(recording)

    assert (finding.code, finding.severity, finding.confidence, finding.ranks) == ("DD205", NOTE, CERTAIN, (1,))
    assert finding.place.line == jobs.line("[model, optimizer] if shadowed else [model]")
    for healthy in ({"remembers": False}, {"shadowed": True}):
        recording, _ = jobs.watched(jobs.joined_epochs, **healthy)
        assert found(recording) == []


def test_the_condition_that_gives_one_rank_the_object_which_changes_weights_is_shown() -> None:
    recording, _ = jobs.watched(kept_best.training)
    finding = only(recording)
    lines = [recording.sources[one.site.path].splitlines()[one.site.line - 1].strip() for one in finding.places[:3]]

    assert (finding.code, finding.ranks, finding.place) == ("DD203", (0,), finding.places[0].site)
    assert lines == [
        "if rank == 0:",
        "found.append(Best(model))  # rank 0 alone",
        "self.model.load_state_dict(self.state)  # back to them",
    ]


def test_experts_whose_gradients_are_averaged_are_not_told_to_begin_alike() -> None:
    recording, _ = jobs.watched(jobs.experts_averaged)
    finding = only(recording)

    assert (finding.code, finding.ranks, finding.confidence) == ("DD201", (0, 1), LIKELY)
    assert "# of experts, too" in recording.sources[finding.place.path].splitlines()[finding.place.line - 1]
    assert "their gradients that must not be averaged" in finding.why
    assert finding.prescriptions[0].patch is None


HEALTHY: list[tuple[Callable[..., Any], dict[str, Any]]] = [
    (jobs.plain, {}),
    (jobs.plain, {"norm": True}),
    (jobs.plain, {"norm": True, "broadcast_buffers": False, "dropout": 0.2}),
    (jobs.plain, {"gradient_as_bucket_view": True, "bucket_cap_mb": 1e-4}),
    (jobs.plain, {"static_graph": True}),
    (jobs.plain, {"find_unused_parameters": True}),
    (jobs.unfrozen_after_some_steps, {"wraps_again": True}),
    (jobs.averaged_by_hand, {}),
    (jobs.experts_averaged, {"alone": True}),
    (jobs.overflow_by_rank, {"agreed": True}),
    (jobs.summed_in_buckets, {"divides": True}),
    (jobs.averaged_in_one_pass, {"which": 2}),
    (jobs.one_critic_and_actors_apart, {}),
    (jobs.accumulated, {}),
    (jobs.uneven_under_join, {}),
    (jobs.joined_epochs, {}),
    (jobs.joined_epochs, {"remembers": False}),
    (jobs.joined_epochs, {"shadowed": True}),
    (jobs.adversaries, {}),
    (jobs.averaged_copy, {}),
    (jobs.frozen_body, {}),
    (jobs.low_rank, {}),
    (jobs.unused_branch, {}),
    (jobs.closures, {}),
    (jobs.split_optimizer, {}),
    (jobs.scaled, {}),
    (jobs.sharded, {}),
    (jobs.replicated_and_sharded, {}),
    (jobs.tensor_parallel, {}),
    (jobs.compiled, {}),
    (jobs.own_optimizers, {"kind": "fused"}),
    (jobs.own_optimizers, {"kind": "foreach"}),
    (jobs.checkpointed, {}),
    (jobs.two_models_apart, {}),
    (kept_best.training, {"on_every_rank": True}),
]


@pytest.mark.parametrize(("job", "about"), HEALTHY, ids=[f"{case[0].__name__}{n}" for n, case in enumerate(HEALTHY)])
def test_a_healthy_training_is_silent_and_trains_the_same_to_the_last_bit(
    job: Callable[..., Any], about: dict[str, Any]
) -> None:
    recording, looked_at = jobs.watched(job, **about)
    _, left_alone = jobs.watched(job, streams="collectives", **about)

    assert [(one.code, one.title, one.why) for one in found(recording) if one.severity != NOTE] == []
    assert all(len(log.rows("updates")) for log in recording.ranks.values())
    assert looked_at == left_alone


def test_of_three_ranks_the_majority_names_the_odd_one() -> None:
    for odd, (job, about) in itertools.product(
        (0, 2), ((jobs.edited_weight, {}), (jobs.flipped_bit, {"where": "grad"}))
    ):
        recording, _ = jobs.watched(job, ranks=3, who=odd, **about)
        finding = only(recording)
        assert finding.ranks == (odd,)


def test_every_one_of_many_random_flipped_bits_is_found_with_its_step_parameter_rank_and_bit() -> None:
    found = bit_flip_jobs.plant(bit_flip_jobs.flips(150, ranks=3, seed=7), ranks=3)

    assert [one for one in found if not one.right] == []
    assert {one.code for one in found} == {"DD214", "DD205"}
    assert {one.code for one in found if one.flip.where != "state"} == {"DD214"}
