"""Gradients of a strategy against those of one process: equal up to rounding, and a wrong factor is named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import reference_training
import torch
from jobs import run_ranks, values

from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import CERTAIN, ERROR, LIKELY, NOTE
from distdoctor.plugins import load
from distdoctor.recording.comparison import Comparison, read_comparison
from distdoctor.recording.recording import Job, Recording
from distdoctor.report.layer_table import render
from distdoctor.workloads import baseline
from distdoctor.workloads.baseline import BaselineStep
from distdoctor.workloads.comparison import baseline_of, compared
from distdoctor.workloads.request import TrainingRequest

REQUEST = TrainingRequest(strategy="ddp", train="", accumulate=4)


def gradients(seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"body.weight": (64, 20), "body.bias": (64,), "head.weight": (10, 64)}
    return {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()}


def against(change: float = 1.0, noise: float = 0.0, request: TrainingRequest = REQUEST) -> Comparison:
    base, other = gradients(), gradients(1)
    found = {name: change * gradient + noise * other[name] for name, gradient in base.items()}
    return compared(BaselineStep(found), BaselineStep(base), request, ranks=2)


def only_finding(comparison: Comparison) -> Any:
    recording = Recording(Job(world_size=2), {}, streams=frozenset(), comparison=comparison)
    (finding,) = examine(recording, [load().checks["DD213"]]).findings
    return finding


@pytest.mark.parametrize(("precision", "noise"), [("fp32", 1e-6), ("bf16", 1e-2), ("fp16", 1e-3)])
def test_what_rounding_explains_agrees(precision: str, noise: float) -> None:
    assert against(noise=noise, request=replace(REQUEST, precision=precision)).agrees


@pytest.mark.parametrize(
    ("factor", "words"),
    [
        (2.0, "2, the number of ranks: gradients are summed, not averaged"),
        (0.5, "1/2: gradients are divided by the number of ranks twice"),
        (4.0, "4, the micro-batches: their losses are summed, not averaged"),
        (0.25, "1/4: the loss is divided by the micro-batches twice"),
        (-1.0, "-1: the sign is wrong"),
        (0.7, "0.7"),
    ],
)
def test_a_factor_is_named_as_what_it_is(factor: float, words: str) -> None:
    comparison = against(factor)

    assert not comparison.agrees
    assert comparison.likely == words
    finding = only_finding(comparison)
    assert (finding.code, finding.severity, finding.confidence) == ("DD213", ERROR, CERTAIN)
    assert words in finding.title
    assert finding.evidence["factor"] == pytest.approx(factor)
    assert f"differ by the factor {words}" in render(comparison)


def test_a_difference_without_a_common_factor_is_said_to_have_none() -> None:
    comparison = against(noise=0.3)

    assert not comparison.agrees
    assert "by no common factor" in render(comparison) or comparison.factor is not None


def test_parameters_that_one_side_lacks_are_named_and_never_called_equal() -> None:
    base = gradients()
    comparison = compared(
        BaselineStep({name: base[name] for name in list(base)[:2]}), BaselineStep(base), REQUEST, ranks=2
    )

    assert not comparison.agrees
    assert comparison.missing == ("head.weight",)
    assert "head.weight cannot be compared" in render(comparison)


def test_a_factor_of_five_percent_is_seen_even_in_sixteen_bits() -> None:
    assert not against(1.1, request=replace(REQUEST, precision="bf16")).agrees
    assert not against(1.05, request=replace(REQUEST, precision="fp16")).agrees
    assert not against(1.0001).agrees


def test_a_layer_that_is_not_finite_never_agrees() -> None:
    base = gradients()
    broken = {**base, "body.bias": torch.full((64,), float("nan"), dtype=torch.float64)}

    comparison = compared(BaselineStep(broken), BaselineStep(base), REQUEST, ranks=2)

    assert [layer.name for layer in comparison.different] == ["body.bias"]
    assert "body.bias" in only_finding(comparison).title


def test_a_comparison_is_read_back_from_the_run_folder(tmp_path: Path) -> None:
    assert read_comparison(tmp_path) is None
    comparison = against(2.0)
    comparison.write(tmp_path)
    assert read_comparison(tmp_path) == comparison
    (tmp_path / "comparison.json").write_text("{")
    assert read_comparison(tmp_path) is None


# -- real trainings ----------------------------------------------------------------------------------------------------------


def train_rank(rank: int, world_size: int, text: str, folder: str) -> None:
    reference_training.train_rank(rank, world_size, replace(TrainingRequest.from_json(text), result=folder).to_json())


def one_step(request: TrainingRequest, ranks: int, folder: Path) -> BaselineStep:
    folder.mkdir()
    asked = replace(request, drills=(*request.drills, baseline.PLANT)).to_json()
    values(run_ranks(train_rank, ranks, asked, str(folder), timeout=120))
    return baseline.read(folder)


BASELINES: dict[str, BaselineStep] = {}
"""Many strategies are compared with the same training of one process."""


def both_ways(folder: Path, strategy: str, ranks: int, drills: Sequence[str] = (), **options: Any) -> Comparison:
    request = reference_training.request(strategy, steps=1, epochs=1, evaluate=False, **options)
    request = replace(request, drills=tuple(load().drills[slug].plant for slug in drills))
    alone = baseline_of(request, reference_training.STRATEGIES["single"].train)
    key = alone.to_json()
    if key not in BASELINES:
        BASELINES[key] = one_step(alone, 1, folder / "one")
    return compared(one_step(request, ranks, folder / "both"), BASELINES[key], request, ranks)


STRATEGIES: list[tuple[str, int, dict[str, Any]]] = [
    ("dp", 1, {}),
    ("ddp", 2, {}),
    ("ddp", 3, {"batch_size": 48, "accumulate": 2}),
    ("ddp", 2, {"by_hand": True}),
    ("ddp", 2, {"precision": "bf16", "model": "gpt"}),
    ("fsdp", 2, {}),
    ("fsdp", 2, {"precision": "bf16"}),
    ("fsdp", 2, {"precision": "fp16"}),
    ("pipeline", 2, {}),
    ("pipeline", 2, {"precision": "bf16"}),
    ("amp", 2, {}),
    ("amp", 2, {"precision": "bf16", "accumulate": 2}),
    ("model-parallel", 1, {}),
    ("tensor", 2, {}),
    ("tensor", 2, {"precision": "bf16"}),
    ("hybrid", 4, {}),
    ("hybrid", 2, {"precision": "bf16"}),
]


@pytest.mark.job
@pytest.mark.parametrize(
    ("strategy", "ranks", "options"), STRATEGIES, ids=[f"{case[0]}{n}" for n, case in enumerate(STRATEGIES)]
)
def test_every_strategy_has_the_gradients_of_one_process(
    strategy: str, ranks: int, options: dict[str, Any], tmp_path: Path
) -> None:
    comparison = both_ways(tmp_path, strategy, ranks, **options)

    assert comparison.agrees, render(comparison)
    assert comparison.layers
    assert all(layer.allowed < 0.25 for layer in comparison.layers), render(comparison)


@pytest.mark.job
@pytest.mark.parametrize(
    ("drill", "options", "words"),
    [
        ("mis-scaled-reduction", {}, "1/2: gradients are divided by the number of ranks twice"),
        ("mis-scaled-reduction", {"precision": "bf16"}, "1/2: gradients are divided by the number of ranks twice"),
        ("mis-scaled-accumulation", {"accumulate": 4}, "4, the micro-batches: their losses are summed, not averaged"),
        ("mis-scaled-accumulation", {"accumulate": 4, "precision": "bf16"}, "4, the micro-batches: "),
    ],
)
def test_a_planted_factor_is_named(drill: str, options: dict[str, Any], words: str, tmp_path: Path) -> None:
    comparison = both_ways(tmp_path, "ddp", 2, [drill], **options)

    assert comparison.likely.startswith(words), render(comparison)
    assert words in only_finding(comparison).title


@pytest.mark.job
def test_batch_normalisation_over_each_share_is_a_note(tmp_path: Path) -> None:
    comparison = both_ways(tmp_path, "ddp", 2, factory="reference_training:normalised")

    finding = only_finding(comparison)
    assert (finding.severity, finding.confidence) == (NOTE, LIKELY)
    assert "2 normalizes each share of the batch" in finding.title
    assert [cure.slug for cure in finding.prescriptions] == ["normalise-the-whole-batch"]
