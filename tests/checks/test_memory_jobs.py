"""The checks on memory, each on a real job that is ill and on the healthy ones that look most like them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from jobs import memory as jobs

from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import CERTAIN, LIKELY, NOTE, POSSIBLE, Confidence, Finding
from distdoctor.plugins import load
from distdoctor.recording.recording import Recording

pytestmark = pytest.mark.job
HERE = (
    "DD401", "DD402", "DD403", "DD404", "DD405", "DD406", "DD408", "DD409", "DD410", "DD411", "DD412", "DD413",
    "DD502", "DD510",
)  # fmt: skip


def found(recording: Recording) -> list[Finding]:
    """What the installed checks on recorded memory say."""
    checks = [check for check in load().checks.values() if check.code in HERE]
    diagnosis = examine(recording, checks)
    assert [one for one in diagnosis.not_examined if "failed" in one.reason] == []
    return list(diagnosis.findings)


def only(recording: Recording) -> Finding:
    findings = found(recording)
    assert len(findings) == 1, [(one.code, one.title, one.why) for one in findings]
    return findings[0]


# job, code, variable, the words of the line that is pointed at, how sure, bytes per step (0: only operations grow)
GROWING: list[tuple[Callable[..., Any], str, str, Confidence, int]] = [
    (jobs.total_of_losses, "total", "total += loss  # with its graph", CERTAIN, 0),
    (jobs.kept_outputs, "outputs", "# a second forward, kept with its graph", CERTAIN, 256 * (512 + 32 + 10) * 4),
    (jobs.kept_in_an_attribute, "self.history", "# in an attribute", CERTAIN, 4),
    (jobs.carried_state, "hidden", "# the state of the batch before", CERTAIN, 256 * (32 + 64) * 4),
    (jobs.cache_without_bound, "cache", "# one MiB in each step", LIKELY, 1 << 20),
]


@pytest.mark.parametrize(
    ("job", "variable", "words", "sure", "size"), GROWING, ids=[one[0].__name__ for one in GROWING]
)
def test_what_grows_is_named_with_its_line_and_its_bytes(
    job: Callable[..., Any], variable: str, words: str, sure: Confidence, size: int
) -> None:
    ranks = 2 if job is jobs.total_of_losses else 1

    finding = only(jobs.watched(job, ranks=ranks)[0])

    assert (finding.code, finding.ranks, finding.confidence) == ("DD401", tuple(range(ranks)), sure)
    assert finding.evidence["variable"] == variable
    assert finding.place.line == jobs.line(words)
    assert abs(finding.evidence["bytes_per_step"] - size) <= 0.1 * size + 8  # type: ignore[operator]


def test_hooks_that_are_registered_in_every_step_are_named_with_the_line_that_registers_them() -> None:
    finding = only(jobs.watched(jobs.hook_of_every_step, ranks=1)[0])

    assert (finding.code, finding.confidence) == ("DD401", CERTAIN)
    assert finding.evidence["variable"] == "model.module.body._forward_hooks"
    assert finding.place.line == jobs.line("# one more in each step")
    assert "remove()" in finding.prescriptions[0].change


HEALTHY: list[tuple[Callable[..., Any], dict[str, Any]]] = [
    (jobs.plain, {}),
    (jobs.plain, {"evaluate_every": 10}),
    (jobs.plain, {"accumulate": 3}),
    (jobs.sequences, {}),
    (jobs.sequences, {"growing": True}),
    (jobs.replayed, {}),
    (jobs.replayed, {"how": "deque"}),
    (jobs.averaged_weights, {}),
    (jobs.read_once, {}),
    (jobs.adversaries, {}),
    (jobs.carried_state, {"detach": True}),
    (jobs.hook_of_every_step, {"removes": True}),
    (jobs.hooks_of_all_steps, {}),
    (jobs.attacked, {}),
    (jobs.second_loss, {}),
]


@pytest.mark.parametrize(("job", "about"), HEALTHY, ids=[f"{case[0].__name__}{n}" for n, case in enumerate(HEALTHY)])
def test_a_healthy_training_is_silent(job: Callable[..., Any], about: dict[str, Any]) -> None:
    recording, _ = jobs.watched(job, ranks=1, **about)

    assert [(one.code, one.title, one.why) for one in found(recording)] == []
    assert all(len(log.rows("memory")) > 4 for log in recording.ranks.values())


def test_an_evaluation_with_gradients_is_named_with_what_a_batch_keeps() -> None:
    finding = only(jobs.watched(jobs.evaluated_with_gradients)[0])

    assert (finding.code, finding.ranks, finding.confidence) == ("DD411", (0, 1), CERTAIN)
    assert finding.place.line == jobs.line("# validation")
    assert finding.evidence["bytes_per_batch"] == 256 * (512 + 32) * 4


def test_outputs_that_an_evaluation_keeps_until_its_end_are_named_unless_they_are_small() -> None:
    finding = only(jobs.watched(jobs.kept_each_batch_of_an_evaluation, ranks=1)[0])

    assert (finding.code, finding.confidence, finding.severity) == ("DD401", LIKELY, NOTE)
    assert finding.evidence["variable"] == "outputs"
    assert finding.place.line == jobs.line("# of each batch")
    assert finding.evidence["evaluations"] == 2
    assert found(jobs.watched(jobs.kept_each_batch_of_an_evaluation, ranks=1, only_the_best=True)[0]) == []


def test_what_an_earlier_evaluation_left_is_not_taken_for_the_graph_of_the_next_one() -> None:
    finding = only(jobs.watched(jobs.kept_the_best_evaluation, ranks=1)[0])

    assert (finding.code, finding.place.line) == ("DD411", jobs.line("# batches of an evaluation"))
    assert finding.evidence["variable"] == "total"


def test_an_evaluation_by_hand_that_carries_its_graph_along_is_named_unless_it_is_trained_on() -> None:
    finding = only(jobs.watched(jobs.evaluated_without_a_loader, ranks=1)[0])

    assert (finding.code, finding.confidence, finding.evidence["variable"]) == ("DD411", LIKELY, "total")
    assert finding.title.endswith("to its end")
    assert found(jobs.watched(jobs.evaluated_without_a_loader, ranks=1, wanted=True)[0]) == []


def test_an_evaluation_without_gradients_is_silent_also_where_autocast_numbers_its_casts() -> None:
    for mixed in (False, True):
        assert found(jobs.watched(jobs.evaluated_with_gradients, ranks=1, without=True, mixed=mixed)[0]) == []


def test_a_graph_that_outlives_its_step_is_named_and_one_that_is_freed_is_not() -> None:
    finding = only(jobs.watched(jobs.graph_kept_for_nothing, ranks=1)[0])

    assert (finding.code, finding.confidence) == ("DD410", CERTAIN)
    assert finding.place.line == jobs.line("# nobody asks again")
    assert 256 * (2048 + 32) * 4 <= finding.evidence["saved_bytes"][-1] <= 256 * (2048 + 64) * 4  # type: ignore[index]
    assert found(jobs.watched(jobs.graph_kept_for_nothing, ranks=1, keep=False)[0]) == []


def test_a_rank_that_holds_the_state_for_all_is_named_and_equal_ones_are_not() -> None:
    finding = only(jobs.watched(jobs.state_on_one_rank)[0])

    assert (finding.code, finding.ranks, finding.confidence) == ("DD405", (0,), CERTAIN)
    assert finding.evidence["more_by_category"]["state"] == 2 * 4 * (4096 * 2048 + 2048) + 8  # type: ignore[index]
    assert found(jobs.watched(jobs.state_on_one_rank, everywhere=True)[0]) == []


def test_a_rank_that_runs_out_of_memory_is_named_with_step_phase_line_and_size() -> None:
    finding = only(jobs.watched(jobs.out_of_memory, fails=True)[0])

    assert (finding.code, finding.ranks, finding.confidence) == ("DD408", (1,), CERTAIN)
    assert finding.evidence["step"] == 5
    assert finding.evidence["asked_bytes"] == 2 << 30
    assert finding.evidence["phase"] == "forward"
    assert finding.place.line == jobs.line("# a hidden layer of 2 GiB")
    assert finding.evidence["held"]["state"] > 0  # type: ignore[index]
    assert finding.prescriptions[0].slug == "halve-the-micro-batch"  # the next thing to try, of a forward


# What fills the device, and the code that says so. The allocator's numbers are a stand-in's: what the CPU holds, counted.
FULL = [("activations", "DD402"), ("optimizer", "DD403"), ("parameters", "DD404")]


@pytest.mark.parametrize(("what", "code"), FULL, ids=[what for what, _ in FULL])
def test_what_fills_a_device_is_named_with_its_bytes_and_with_room_left_nothing_is(what: str, code: str) -> None:
    finding = only(jobs.watched(jobs.nearly_full_device, ranks=1, what=what)[0])

    assert (finding.code, finding.confidence) == (code, CERTAIN)
    assert finding.place.line == jobs.line("# on a device that is nearly full")
    seen = {name: finding.evidence[name] for name in ("activations", "optimizer", "parameters_and_gradients")}
    assert max(seen, key=lambda name: int(seen[name])).startswith(what)  # type: ignore[call-overload]
    assert sum(seen.values()) == finding.evidence["peak"]  # type: ignore[arg-type]
    assert found(jobs.watched(jobs.nearly_full_device, ranks=1, what=what, room=1.5)[0]) == []


def test_an_allocator_that_had_to_retry_with_most_of_its_memory_unused_is_named() -> None:
    finding = only(jobs.watched(jobs.torn_to_pieces, ranks=1)[0])

    assert (finding.code, finding.confidence, finding.evidence["retries"]) == ("DD406", CERTAIN, 4)
    assert finding.evidence["reserved_bytes"] == 3 << 30
    assert found(jobs.watched(jobs.torn_to_pieces, ranks=1, retries=0)[0]) == []


def test_a_rank_with_a_context_on_the_device_of_another_is_named_and_ranks_on_their_own_are_not() -> None:
    finding = only(jobs.watched(jobs.on_the_first_device)[0])

    assert (finding.code, finding.ranks, finding.confidence) == ("DD409", (1,), CERTAIN)
    assert finding.evidence == {"owner": 0, "cached_bytes": {1: 2 << 20}}
    assert finding.place.path == jobs.__file__
    assert found(jobs.watched(jobs.on_the_first_device, guests=())[0]) == []


def test_data_parallel_over_two_devices_is_named_with_its_line_and_without_devices_it_is_a_plain_module() -> None:
    finding = only(jobs.watched(jobs.over_devices, ranks=1)[0])

    assert (finding.code, finding.evidence["count"]) == ("DD502", 2)
    assert finding.place.line == jobs.line("# one process for all devices")
    assert found(jobs.watched(jobs.over_devices, ranks=1, devices=0)[0]) == []


def test_a_second_copy_of_all_gradients_is_named_and_gradients_that_lie_in_the_buckets_are_none() -> None:
    finding = only(jobs.watched(jobs.wide_buckets, deep=True, streams=jobs.STREAMS + ",gradients")[0])

    assert (finding.code, finding.ranks, finding.confidence) == ("DD412", (0, 1), CERTAIN)
    assert finding.evidence["bucket_bytes"] == finding.evidence["gradient_bytes"] == 4 * (3600 * 3600 + 3600)
    assert finding.place.line == jobs.line("# 49 MiB of gradients")
    assert found(jobs.watched(jobs.wide_buckets, deep=True, views=True)[0]) == []


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_products_in_fp32_on_a_device_are_named_and_those_under_autocast_are_not() -> None:
    finding = only(jobs.watched(jobs.products_on_a_device, ranks=1)[0])

    assert (finding.code, finding.confidence) == ("DD510", POSSIBLE)
    assert finding.place.line == jobs.line("# of products in fp32")
    assert found(jobs.watched(jobs.products_on_a_device, ranks=1, autocast=True)[0]) == []


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_rank_that_runs_out_of_device_memory_is_named_with_what_the_allocator_held() -> None:
    recording, _ = jobs.watched(jobs.out_of_device_memory, ranks=1, fails=True)
    finding = only(recording)

    assert (finding.code, finding.evidence["of"], finding.evidence["step"]) == ("DD408", "device memory", 5)
    assert finding.evidence["asked_bytes"] == 1 << 46
    assert finding.place.line == jobs.line("# 64 TiB of a device")
    rows = recording.ranks[0].rows("memory")
    assert rows["device"][-1] == 0
    assert rows["capacity"][-1] > rows["reserved"][-1] >= rows["peak"][-1] >= rows["allocated"][-1] > 0
