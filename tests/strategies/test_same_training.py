"""Every strategy is the same training: its loss curve is that of `single`, but for rounding."""

from __future__ import annotations

from typing import Any

import pytest
from reference_training import DOUBLE, losses, train

STEPS = 6
BATCH = 64
EPSILON_RATIO = 2.0**-29
"""Of float64's spacing to float32's: 2^-52 / 2^-23."""
MARGIN = 8
"""A sum over ranks is rounded in another order than a sum over a batch: an error of the same kind, not the same error."""

TWO_RANKS: list[tuple[str, dict[str, Any]]] = [
    ("dp", {}),
    ("ddp", {}),
    ("ddp", {"by_hand": True}),
    ("ddp", {"accumulate": 2}),
    ("ddp", {"accumulate": 2, "sync_every_micro_step": True}),
    ("ddp", {"checkpoint_activations": True}),
    ("ddp", {"workers": 1}),
    ("fsdp", {}),
    ("fsdp", {"accumulate": 2, "reshard_after_forward": False}),
    ("fsdp", {"offload": True, "checkpoint_activations": True}),
    ("pipeline", {"schedule": "1f1b"}),
    ("pipeline", {"schedule": "gpipe", "accumulate": 2}),
    ("pipeline", {"schedule": "interleaved", "checkpoint_activations": True}),
    ("model-parallel", {"accumulate": 2}),
    ("tensor", {"accumulate": 2}),
    ("hybrid", {}),
    ("hybrid", {"mesh": "tensor=2"}),
]
FOUR_RANKS: list[tuple[str, dict[str, Any]]] = [
    ("ddp", {}),
    ("fsdp", {}),
    ("pipeline", {"schedule": "1f1b"}),
    ("pipeline", {"schedule": "interleaved"}),
    ("model-parallel", {}),
    ("tensor", {}),
    ("hybrid", {"mesh": "replicate=2,shard=2"}),
    ("hybrid", {"mesh": "shard=2,tensor=2"}),
]


@pytest.fixture(scope="module")
def single_in_double() -> dict[str, Any]:
    return train("single", 1, steps=STEPS, batch_size=BATCH, factory=DOUBLE)[0]


@pytest.fixture(scope="module")
def single_in_float() -> dict[str, Any]:
    return train("single", 1, steps=STEPS, batch_size=BATCH)[0]


@pytest.fixture(scope="module")
def float_rounding(single_in_float: dict[str, Any], single_in_double: dict[str, Any]) -> float:
    """What rounding to float32 does to the losses of `single`, relative to them: the source of all tolerances here."""
    rounding = furthest(losses(single_in_float), losses(single_in_double))
    assert 2**-24 < rounding < 1e-5
    return rounding


def furthest(curve: list[float], reference: list[float]) -> float:
    assert len(curve) == len(reference) == STEPS
    return max(abs(one - other) / abs(other) for one, other in zip(curve, reference, strict=True))


def name_of(case: Any) -> str:
    return " ".join([case] if isinstance(case, str) else [f"{key}={value}" for key, value in case.items()])


@pytest.mark.job
@pytest.mark.parametrize(
    ("world_size", "strategy", "options"),
    [(2, *case) for case in TWO_RANKS] + [(4, *case) for case in FOUR_RANKS],
    ids=lambda case: name_of(case) if not isinstance(case, int) else str(case),
)
def test_the_losses_are_those_of_single(
    world_size: int, strategy: str, options: dict[str, Any], single_in_double: Any, float_rounding: float
) -> None:
    """In float64, where a wrong factor, sample or order is a billion times larger than what rounding can do."""
    results = train(strategy, world_size, steps=STEPS, batch_size=BATCH, factory=DOUBLE, **options)
    tolerance = MARGIN * float_rounding * EPSILON_RATIO
    assert furthest(losses(results[0]), losses(single_in_double)) <= tolerance
    assert all(result["losses"] in (results[0]["losses"], []) for result in results)
    # Two steps of different curves differ, or the comparison above would prove nothing.
    assert len(set(losses(results[0]))) == STEPS
    # 359 test samples divide among no number of ranks: padding that was counted would show.
    assert results[0]["accuracies"] == single_in_double["accuracies"]


@pytest.mark.job
@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "pipeline", "model-parallel", "tensor", "hybrid"])
def test_the_losses_are_those_of_single_in_float32_too(
    strategy: str, single_in_float: Any, float_rounding: float
) -> None:
    results = train(strategy, 2, steps=STEPS, batch_size=BATCH)
    assert furthest(losses(results[0]), losses(single_in_float)) <= MARGIN * float_rounding


@pytest.mark.job
def test_another_order_of_samples_is_far_outside_the_tolerance(single_in_double: Any, float_rounding: float) -> None:
    """The healthy twin of the comparison's failure: a wrong seed is seen at once."""
    other = train("ddp", 2, steps=STEPS, batch_size=BATCH, factory=DOUBLE, seed=1)
    assert furthest(losses(other[0]), losses(single_in_double)) > 1e6 * MARGIN * float_rounding * EPSILON_RATIO


@pytest.mark.job
@pytest.mark.parametrize("strategy", ["ddp", "amp", "fsdp", "pipeline", "model-parallel", "tensor", "hybrid"])
def test_bf16_stays_within_its_own_rounding(strategy: str, single_in_float: Any) -> None:
    """bf16 keeps 8 bits: 2^-8 is its spacing, relative to a number."""
    results = train(strategy, 2, steps=STEPS, batch_size=BATCH, precision="bf16")
    deviation = furthest(losses(results[0]), losses(single_in_float))
    assert 0 < deviation <= 2**-8 * 4


@pytest.mark.job
def test_batch_normalisation_trains_in_bf16_where_fsdp_casts() -> None:
    """Its statistics stay in 32 bits, and torch refuses weights of 16 beside them."""
    whole = losses(train("fsdp", 2, factory="reference_training:normalised", steps=4, evaluate=False)[0])
    short = train("fsdp", 2, factory="reference_training:normalised", steps=4, evaluate=False, precision="bf16")[0]

    assert losses(short) == pytest.approx(whole, rel=2e-2)
    assert losses(short) != whole


@pytest.mark.job
@pytest.mark.parametrize("strategy", ["amp", "fsdp", "pipeline", "model-parallel"])
def test_fp16_learns_with_a_scaler(strategy: str) -> None:
    """The scaler gives up the first steps, whose gradients overflow at its initial scale of 65,536; then the loss falls."""
    results = train(strategy, 2, steps=4 * STEPS, precision="fp16")
    curve = losses(results[0])
    assert curve[-1] < curve[0] / 2
    assert all(result["losses"] == results[0]["losses"] for result in results)


@pytest.mark.job
@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "pipeline", "tensor"])
def test_the_gpt_trains_the_same_split_or_whole(strategy: str) -> None:
    whole = train("single", 1, steps=3, model="gpt", evaluate=False)
    split = train(strategy, 2, steps=3, model="gpt", evaluate=False)
    # torch.testing's own tolerance for float32.
    assert losses(split[0]) == pytest.approx(losses(whole[0]), rel=1.3e-6)


@pytest.mark.job
def test_replicas_end_bit_equal() -> None:
    results = train("ddp", 2, steps=STEPS, batch_size=BATCH)
    assert results[0]["parameters_whole"]
    assert results[0]["parameters_sha256"] == results[1]["parameters_sha256"]
