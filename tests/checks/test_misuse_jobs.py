"""Misuse of optimizers, clipping, random numbers and collectives: each on a real job, and silence on its healthy twins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from jobs import misuse as jobs
from jobs import replicas as gradient_jobs
from jobs import schedules as schedule_jobs
from test_replicas_jobs import found

from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import CERTAIN, ERROR, LIKELY, NOTE, POSSIBLE, WARNING, Severity
from distdoctor.plugins import load

pytestmark = pytest.mark.job
STREAMS = "collectives,environment,gradients,progress,samples"

# job, code, severity, confidence, words of the line that is pointed at, some of the evidence
ILL: list[tuple[Callable[..., Any], dict[str, Any], str, Severity, str, str, dict[str, Any]]] = [
    (jobs.built_before_sharding, {}, "DD211", ERROR, CERTAIN, "# too early",
     {"parameters": ["body.weight", "body.bias", "head.weight", "head.bias"], "stale_in_optimizer": 4}),
    (jobs.built_before_the_head, {}, "DD211", ERROR, LIKELY, "# without the new head",
     {"parameters": ["head.weight", "head.bias"], "stale_in_optimizer": 2}),
    (jobs.unfrozen_without_optimizer, {}, "DD211", ERROR, LIKELY, "# only of the head",
     {"parameters": ["body.weight", "body.bias"], "stale_in_optimizer": 0}),
    (jobs.left_out, {}, "DD211", NOTE, CERTAIN, "def left_out", {"parameters": ["body.weight", "body.bias"]}),
    (jobs.head_with_a_wrapper_of_its_own, {}, "DD206", ERROR, CERTAIN, "# not through the second wrapper",
     {"step": 1, "forwards_through_wrapper": 0}),
    (jobs.branch_by_rank, {}, "DD210", ERROR, CERTAIN, "# decided by this rank alone",
     {"step": 1, "used_by": {"head.weight": [0], "head.bias": [0], "second.weight": [1], "second.bias": [1]}}),
    (jobs.branch_by_rank, {"since": 4}, "DD210", ERROR, CERTAIN, "# decided by this rank alone", {"step": 4}),
    (jobs.clipped_by_hand, {}, "DD215", ERROR, CERTAIN, "# of this rank alone", {"step": 1}),
    (jobs.clipped_by_hand, {"halves": True}, "DD215", ERROR, CERTAIN, "# the norm of this rank alone", {"step": 1}),
    (jobs.clipped_in_micro_batches, {}, "DD215", ERROR, CERTAIN, "# of what is there so far", {"step": 1, "steps_seen": 4}),
    (jobs.clipped_flat_shards, {}, "DD215", ERROR, CERTAIN, "# of this shard alone", {"step": 1}),
    (jobs.shards_clipped_by_hand, {}, "DD220", ERROR, LIKELY, "# of this rank's shards", {"step": 2}),
    (jobs.dropout_by_seed, {}, "DD216", NOTE, CERTAIN, "cross_entropy", {"dropout": "drop (Dropout 0.2)"}),
    (jobs.dropout_after_a_resume, {}, "DD216", WARNING, LIKELY, "# as it was saved", {"since_backward": 7, "passes": 6}),
    (jobs.split_with_dropout, {}, "DD216", ERROR, LIKELY, "cross_entropy", {"step": 1}),
    (jobs.split_with_dropout_within, {}, "DD216", NOTE, LIKELY, "cross_entropy", {"dropout": "drop (Dropout 0.3)"}),
    (jobs.recomputed, {}, "DD216", WARNING, CERTAIN, "preserve_rng_state=keeps", {"function": "block"}),
    (jobs.contrastive, {}, "DD217", WARNING, LIKELY, "# no gradient", {"step": 1, "op": "all_gather"}),
    (jobs.contrastive, {"own_function": True}, "DD217", ERROR, CERTAIN, "# no gradient", {"step": 1, "op": "all_gather"}),
    (jobs.contrastive, {"how": "detached queries"}, "DD217", NOTE, POSSIBLE, "# no gradient", {"step": 1, "op": "all_gather"}),
    (jobs.denoising, {}, "DD216", NOTE, POSSIBLE, "# at these times", {"generator": "own"}),
    (jobs.generating, {}, "DD216", NOTE, POSSIBLE, "# of these latents", {"generator": "own"}),
    (jobs.with_shares_of_classes, {}, "DD217", WARNING, LIKELY, "# of everybody", {"step": 1, "parameter": "weight"}),
    (jobs.classified_after_gathering, {}, "DD217", ERROR, CERTAIN, "# and the body is cut off", {"step": 1}),
    (jobs.summed_in_place, {"how": "statistics"}, "DD217", WARNING, LIKELY, "# summed in place", {"step": 1, "op": "all_reduce"}),
    *((jobs.summed_in_place, {"how": how}, "DD217", NOTE, LIKELY, "# summed in place", {"step": 1, "op": "all_reduce"})
      for how in ("loss", "flat", "handle", "averaged by hand")),
    (jobs.gathered_by_a_function, {}, "DD217", WARNING, LIKELY, "# and no other rank's", {"function": "OwnPart"}),
    (jobs.gathered_by_a_function, {"one_loss": True}, "DD217", NOTE, LIKELY, "# and no other rank's", {"one_loss": True}),
    *((jobs.clipped_stages, {"by_hand": by_hand}, "DD220", WARNING, LIKELY, "# of this stage alone", {"step": 1})
      for by_hand in (False, True)),
    (jobs.distilled, {}, "DD209", WARNING, LIKELY, "# over all ranks", {"ranks": 2}),
    (jobs.old_scaler, {}, "DD804", NOTE, CERTAIN, "torch.cuda.amp.GradScaler", {"instead": 'torch.amp.GradScaler("cuda")'}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("job", "about", "code", "severity", "confidence", "words", "evidence"),
    ILL,
    ids=[f"{case[2]}-{case[0].__name__}{number}" for number, case in enumerate(ILL)],
)
def test_a_misuse_is_named_with_its_line(
    job: Callable[..., Any],
    about: dict[str, Any],
    code: str,
    severity: Severity,
    confidence: str,
    words: str,
    evidence: dict[str, Any],
) -> None:
    recording, _ = gradient_jobs.watched(job, streams=STREAMS, **about)

    finding = found(recording)[0]

    assert (finding.code, finding.severity, finding.confidence) == (code, severity, confidence), finding.title
    assert finding.ranks == (0, 1)
    assert {key: finding.evidence[key] for key in evidence} == evidence
    line = recording.sources[finding.place.path].splitlines()[finding.place.line - 1]
    assert words in line or words.startswith("def "), line
    assert [one.code for one in found(recording) if one.code != code and one.severity == ERROR] == []


def test_a_state_that_one_rank_restores_alone_is_told_in_place_of_what_follows_from_it() -> None:
    recording, _ = gradient_jobs.watched(jobs.restored_by_the_first, streams=f"{STREAMS},checkpoints")
    checks = [check for check in load().checks.values() if check.code.startswith(("DD2", "DD7"))]

    first, *rest = examine(recording, checks).findings

    assert (first.code, first.severity, first.confidence, first.ranks) == ("DD706", ERROR, LIKELY, (1,)), first.title
    assert "# decides who restores" in recording.sources[first.place.path].splitlines()[first.place.line - 1]
    assert [one.code for one in rest if one.severity == ERROR] == []


HEALTHY: list[tuple[Callable[..., Any], dict[str, Any]]] = [
    (jobs.built_after_sharding, {}),
    (jobs.unfrozen_and_added, {}),
    (jobs.changed_by_hand, {}),
    (jobs.one_optimizer_each, {}),
    (jobs.head_with_a_wrapper_of_its_own, {"past": False}),
    (jobs.head_with_a_wrapper_of_its_own, {"in_turn": True}),
    (jobs.branch_by_rank, {"zeros": True}),
    (jobs.branch_by_step, {}),
    (jobs.stepped_unless_the_loss_is_high, {"together": True}),
    (jobs.clipped_by_hand, {"early": False}),
    (jobs.clipped_replicas, {}),
    (jobs.clipped_in_micro_batches, {"each": False}),
    (jobs.clipped_beside_one_of_its_own, {}),
    (jobs.clipped_in_micro_batches, {"limit": float("inf")}),
    (jobs.clipped_shards, {}),
    (jobs.clipped_flat_shards, {"own": False}),
    (jobs.shards_clipped_by_hand, {"summed": True}),
    (jobs.dropout_by_seed, {"same": False}),
    (jobs.dropout_after_a_resume, {"own": True}),
    (jobs.split_with_dropout, {"same": True}),
    (jobs.split_with_dropout_within, {"same": False}),
    (gradient_jobs.tensor_parallel, {}),
    (jobs.recomputed, {"keeps": True}),
    (jobs.recomputed, {"dropout": 0.0}),
    (jobs.gathered_by_a_function, {"how": "summed"}),
    (jobs.gathered_by_a_function, {"how": "scaled", "one_loss": True}),
    (jobs.clipped_stages, {"together": True}),
    (jobs.clipped_stages, {"together": True, "by_hand": True}),
    (jobs.clipped_stages, {"own": True, "by_hand": True}),
    (jobs.clipped_stages, {"limit": 1e6}),
    (jobs.restored_by_the_first, {"by_all": True}),
    (jobs.distilled, {"by_world": True}),
    (jobs.denoising, {"seed": "rank"}),
    (jobs.denoising, {"seed": "fixed"}),
    (jobs.generating, {"seed": "rank"}),
    (jobs.with_shares_of_classes, {"how": "gradient"}),
    (jobs.with_shares_of_classes, {"how": "heads"}),
    (jobs.contrastive, {"how": "gradient"}),
    (jobs.contrastive, {"how": "own"}),
    (jobs.contrastive, {"how": "detached"}),
    (jobs.contrastive, {"how": "metric"}),
    (jobs.scores_for_a_metric, {}),
    *(
        (jobs.summed_in_place, {"how": how})
        for how in (
            "gradient",
            "logged",
            "logged later",
            "constant",
            "no_grad",
            "losses",
            "scaled",
            "summed by hand",
            "alone",
        )
    ),
    (jobs.old_scaler, {"old": False}),
]


@pytest.mark.parametrize(("job", "about"), HEALTHY, ids=[f"{case[0].__name__}{n}" for n, case in enumerate(HEALTHY)])
def test_what_looks_most_like_it_is_silent_and_trains_the_same_to_the_last_bit(
    job: Callable[..., Any], about: dict[str, Any]
) -> None:
    recording, looked_at = gradient_jobs.watched(job, streams=STREAMS, **about)
    _, left_alone = gradient_jobs.watched(job, streams="collectives", **about)

    fsdp1 = {"DD804"} if job is jobs.clipped_flat_shards else set()
    assert {(one.code, one.title) for one in found(recording) if one.code not in fsdp1} == set()
    assert looked_at == left_alone


def test_a_step_that_one_rank_skips_is_told_with_the_condition_and_not_as_gradients_that_differ() -> None:
    recording, _ = gradient_jobs.watched(jobs.stepped_unless_the_loss_is_high, streams=STREAMS)

    finding = found(recording)[0]

    assert (finding.code, finding.ranks, finding.confidence) == ("DD210", (1,), CERTAIN)
    assert finding.title == "step 2: rank 0 took an optimizer step that rank 1 skipped"
    assert "# of some ranks" in recording.sources[finding.place.path].splitlines()[finding.place.line - 1]


@pytest.mark.parametrize("shape", ["cosine", "flat"])
def test_a_schedule_that_accelerate_moves_for_every_process_is_over_too_early(shape: str) -> None:
    pytest.importorskip("accelerate")
    recording, _ = gradient_jobs.watched(schedule_jobs.annealed, shape=shape)
    (finding,) = [one for one in found(recording) if one.code == "DD218"]

    assert (finding.severity, finding.confidence, finding.ranks) == (WARNING, LIKELY, (0, 1))
    assert finding.evidence["steps"] == 60
    if shape == "cosine":
        assert finding.place.line == gradient_jobs.line("# for all processes", schedule_jobs.__file__)
        assert "rises again" in finding.title
    else:
        assert "the learning rate is 0 from step" in finding.title


@pytest.mark.parametrize("about", [{"prepares": False}, {"shape": "anew"}, {"shape": "group", "prepares": False}])
def test_a_schedule_of_the_length_of_the_training_or_one_that_begins_anew_is_silent(about: dict[str, Any]) -> None:
    pytest.importorskip("accelerate")
    recording, _ = gradient_jobs.watched(schedule_jobs.annealed, **about)

    assert [(one.code, one.title) for one in found(recording) if one.severity != NOTE] == []
