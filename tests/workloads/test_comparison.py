"""Gradients of a strategy against those of one process: equal up to rounding, and a wrong factor is named."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from distdoctor.workloads.comparison import Comparison, compared, table
from distdoctor.workloads.request import TrainingRequest

REQUEST = TrainingRequest(strategy="ddp", train="", accumulate=4)


def gradients(seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"body.weight": (64, 20), "body.bias": (64,), "head.weight": (10, 64)}
    return {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()}


def against(change: float = 1.0, noise: float = 0.0, request: TrainingRequest = REQUEST) -> Comparison:
    base, other = gradients(), gradients(1)
    found = {name: change * gradient + noise * other[name] for name, gradient in base.items()}
    return compared(found, base, request, ranks=2)


@pytest.mark.parametrize(("precision", "noise"), [("fp32", 1e-6), ("bf16", 1e-2), ("fp16", 1e-3)])
def test_what_rounding_explains_agrees(precision: str, noise: float) -> None:
    assert against(noise=noise, request=replace(REQUEST, precision=precision)).agrees


@pytest.mark.parametrize(
    ("factor", "words"),
    [
        (2.0, "2, the number of ranks: gradients are summed, not averaged"),
        (0.5, "1/2: gradients are divided by the number of ranks twice"),
        (4.0, "4, the micro-steps: their losses are summed, not averaged"),
        (0.25, "1/4: the loss is divided by the micro-steps twice"),
        (-1.0, "-1: the sign is wrong"),
        (0.7, "0.7"),
    ],
)
def test_a_factor_is_named_as_what_it_is(factor: float, words: str) -> None:
    comparison = against(factor)

    assert not comparison.agrees
    assert comparison.likely == words
    assert f"differ by the factor {words}" in table(comparison)


def test_a_difference_without_a_common_factor_is_said_to_have_none() -> None:
    comparison = against(noise=0.3)

    assert not comparison.agrees
    assert "by no common factor" in table(comparison) or comparison.factor is not None


def test_parameters_that_one_side_lacks_are_named_and_never_called_equal() -> None:
    base = gradients()
    comparison = compared({name: base[name] for name in list(base)[:2]}, base, REQUEST, ranks=2)

    assert not comparison.agrees
    assert comparison.missing == ("head.weight",)
    assert "head.weight cannot be compared" in table(comparison)
