"""What a training will allocate is known before it runs, to the byte where it can be measured here."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from jobs import run_ranks, values
from reference_training import measured_rank

from distdoctor import plugins
from distdoctor.errors import CouldNotLook, WrongUse
from distdoctor.planning import measured_memory, side_buffers
from distdoctor.planning.memory_timeline import MemoryTimeline, ScaledTimeline
from distdoctor.planning.prediction import Predictor, predict, sent_bytes
from distdoctor.workloads.data import synthetic
from distdoctor.workloads.request import TrainingRequest, make_request

FOUND = plugins.load()


def request(strategy: str, **given: Any) -> TrainingRequest:
    return make_request(
        FOUND.strategies[strategy], given, models=FOUND.models.values(), sources=FOUND.data.values(), backend="gloo"
    )


def really_allocated(wanted: TrainingRequest, folder: Path, *, steps: int = 3) -> int:
    """Bytes: the peak of this training, alone in a process of its own, by the profiler's memory events."""
    asked = replace(wanted, steps=steps, evaluate=False, drills=(measured_memory.PLANT,))
    values(run_ranks(measured_rank, 1, asked.to_json(), str(folder), timeout=120))
    return max(json.loads((folder / "memory-0.json").read_text())["peaks"])


@pytest.mark.job
@pytest.mark.parametrize(
    ("strategy", "options"),
    [
        ("single", {"model": "mlp"}),
        ("single", {"model": "convnet", "batch_size": 64}),
        ("single", {"model": "mlp", "optimizer": "sgd"}),
        ("single", {"model": "gpt", "batch_size": 8}),
        ("single", {"model": "gpt", "batch_size": 8, "precision": "bf16"}),
        ("single", {"model": "gpt", "batch_size": 8, "accumulate": 2}),
        ("single", {"model": "gpt", "batch_size": 8, "checkpoint_activations": True}),
        ("ddp", {"model": "gpt", "batch_size": 8}),
        ("ddp", {"model": "mlp", "accumulate": 4}),
        ("amp", {"model": "mlp"}),
    ],
)
def test_the_predicted_peak_is_what_the_allocator_gives(strategy: str, options: dict[str, Any], tmp_path: Path) -> None:
    wanted = request(strategy, **options)

    predicted = predict(wanted, 1).peak.bytes

    assert predicted == pytest.approx(really_allocated(wanted, tmp_path), rel=0.005)


@pytest.mark.job
@pytest.mark.job
@pytest.mark.skipif(not side_buffers._multiplies_bf16(), reason="this CPU does not multiply bf16 as it was measured")
def test_what_products_of_16_bits_take_for_a_moment_is_in_the_peak(tmp_path: Path) -> None:
    wanted = request("single", model="mlp", batch_size=64, precision="bf16")

    assert predict(wanted, 1).peak.bytes == pytest.approx(really_allocated(wanted, tmp_path), rel=0.001)


@pytest.mark.job
def test_what_products_take_for_a_moment_does_not_grow_with_the_batch() -> None:
    predictor = Predictor(request("single", model="mlp", precision="bf16"), 1)

    assert predictor.at(4096).peak.bytes == pytest.approx(predictor.exactly(4096).peak.bytes, rel=0.02)


@pytest.mark.job
def test_two_traces_tell_the_peak_of_every_batch() -> None:
    predictor = Predictor(request("fsdp", model="mlp"), 4)

    assert predictor.at(64) == predictor.exactly(64)
    assert len(predictor._traces) == 3


@pytest.mark.job
def test_the_largest_batch_fits_and_the_next_one_does_not() -> None:
    predictor = Predictor(request("ddp", model="gpt"), 2)
    budget = 50 << 20

    largest = predictor.largest(budget)

    assert largest % 2 == 0
    assert predictor.at(largest).peak.bytes <= budget < predictor.at(largest + 2).peak.bytes
    assert predictor.largest(1 << 10) == 0


@pytest.mark.job
def test_the_categories_add_up_to_the_peak_and_name_what_is_known() -> None:
    single = predict(request("single", model="mlp"), 1).peak
    sharded = predict(request("fsdp", model="mlp"), 4).peak

    assert sum(single.categories.values()) == single.bytes
    assert single.categories["parameters"] == single.categories["gradients"]
    assert single.categories["optimizer"] == pytest.approx(2 * single.categories["parameters"], rel=0.01)
    assert sharded.categories["parameters"] == pytest.approx(single.categories["parameters"] / 4, rel=0.02)


@pytest.mark.job
def test_offloading_moves_shards_and_optimizer_state_to_the_host() -> None:
    kept = predict(request("fsdp", model="mlp"), 2).peak
    offloaded = predict(request("fsdp", model="mlp", offload=True), 2).peak

    assert kept.host_bytes == 0
    assert offloaded.categories["parameters"] == offloaded.categories["optimizer"] == 0
    assert offloaded.bytes < kept.bytes
    assert offloaded.host_bytes > 3 * kept.categories["parameters"]


@pytest.mark.job
def test_checkpointing_trades_activations_for_arithmetic() -> None:
    plain = predict(request("single", model="gpt"), 1)
    checkpointed = predict(request("single", model="gpt", checkpoint_activations=True), 1)

    assert checkpointed.peak.bytes < plain.peak.bytes / 2
    assert plain.recomputed_flops == 0
    assert checkpointed.recomputed_flops / plain.flops == pytest.approx(0.25, abs=0.1)


@pytest.mark.job
def test_ddp_sends_each_gradient_twice_around_the_ring_and_fsdp_half_as_much_again() -> None:
    ddp, fsdp = (predict(request(name, model="mlp"), 2) for name in ("ddp", "fsdp"))

    assert fsdp.sent_bytes / ddp.sent_bytes == pytest.approx(1.5, rel=0.02)
    assert sent_bytes({"allreduce_": 1000, "_reduce_scatter_base_": 1000, "_allgather_base_": 1000}, 4) == 1500 + 1500


@pytest.mark.job
def test_a_model_of_seven_billion_parameters_is_predicted_without_holding_it() -> None:
    found = predict(request("fsdp", model="gpt-7b", batch_size=8), 8)

    parameters = found.peak.categories["parameters"] * 8 / 4
    assert parameters == pytest.approx(6.86e9, rel=0.01)
    assert found.peak.categories["optimizer"] == pytest.approx(2 * found.peak.categories["parameters"], rel=0.01)
    assert found.flops == pytest.approx(6 * (parameters - 2 * 50257 * 4096 + 50257 * 4096) * 1024, rel=0.1)


def test_what_cannot_be_gone_through_without_data_says_so() -> None:
    with pytest.raises(CouldNotLook, match="cannot be predicted"):
        predict(request("pipeline", model="gpt", batch_size=8), 2)


def test_a_model_that_takes_other_data_is_refused_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "narrow.py").write_text("import torch\n\ndef make():\n    return torch.nn.Linear(2, 10)\n")
    monkeypatch.chdir(tmp_path)

    with pytest.raises(CouldNotLook, match=r"same reduction dim(?s:.*)give its own by --data"):
        predict(request("ddp", model="narrow:make", batch_size=8), 2)

    assert "Traceback" not in capfd.readouterr().err


def test_sizes_that_do_not_change_in_step_are_not_extrapolated() -> None:
    small, large = MemoryTimeline(), MemoryTimeline()
    for timeline, sizes in ((small, (10, 20)), (large, (10,))):
        for size in sizes:
            timeline.allocate(size, "activations", "forward")

    assert ScaledTimeline.between(small, large, (2, 3)) is None


@pytest.mark.parametrize("text", ["64", "64x", "0x10", "3x3x3"])
def test_random_data_of_no_shape_is_refused(text: str) -> None:
    with pytest.raises(WrongUse, match="does not say length x vocabulary"):
        synthetic.tokens(text)


def test_random_samples_are_the_same_whenever_they_are_read() -> None:
    train_set, test_set = synthetic.tokens("16x50")
    line, following = train_set[3]

    assert line.shape == following.shape == (16,)
    assert line[1:].equal(following[:-1])
    assert train_set[3][0].equal(line)
    assert len(test_set) < len(train_set)
    assert synthetic.images("3x8x8x5")[0][0][0].shape == (3, 8, 8)
