"""A remedy that is tried is called verified when the re-run shows what was predicted, and only then."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from jobs import run_ranks, values
from reference_training import measured_rank

from distdoctor import plugins
from distdoctor.errors import WrongUse
from distdoctor.planning import memory_results, real_steps, trial
from distdoctor.planning.memory_remedies import CURES, tried
from distdoctor.planning.trial import MeasuredTrial
from distdoctor.workloads.request import TrainingRequest, make_request
from distdoctor_strategies.ddp import knows_lazy_buckets

FOUND = plugins.load()
MIB = 1 << 20
BASE = MeasuredTrial(
    "fully-shard", 2, 40 * MIB, 30 * MIB, 40 * MIB, 30 * MIB, 0.1, 0.2, 0.01, 4 * MIB, 6 * MIB, 4 * MIB, 6 * MIB, 0
)


def asked(strategy: str = "ddp", **given: Any) -> TrainingRequest:
    return make_request(
        FOUND.strategies[strategy], given, models=FOUND.models.values(), sources=FOUND.data.values(), backend="gloo"
    )


@pytest.mark.parametrize(
    ("more", "verdict"),
    [
        ({}, "verified"),
        ({"measured_with": 31 * MIB}, "not as predicted"),
        ({"predicted_with": 40 * MIB}, "not as predicted"),
        ({"measured_sent_with": 4 * MIB}, "not as predicted"),
        ({"predicted_with": 40 * MIB, "measured_with": 40 * MIB}, "verified"),  # by what is sent
        (
            {"predicted_with": 40 * MIB, "measured_with": 40 * MIB - 9, "predicted_sent_with": 4 * MIB,
             "measured_sent_with": 4 * MIB}, "too small to tell",
        ),
    ],
)  # fmt: skip
def test_a_remedy_is_verified_when_the_re_run_shows_the_predicted_effect(more: dict[str, int], verdict: str) -> None:
    found = replace(BASE, **more)  # type: ignore[arg-type]

    assert found.verdict == verdict
    assert found.verified == (verdict == "verified")
    assert trial.render(found).splitlines()[0].endswith(f"({verdict})")


def test_the_first_line_says_what_is_saved_and_seconds_are_told_from_scatter() -> None:
    first, *rest = trial.render(BASE).splitlines()

    assert (
        first == "fully-shard, on 2 ranks: saves 10 MiB of 40 MiB per rank and sends 2 MiB more in a step, "
        "where 4 MiB were sent (verified)"
    )
    assert "+0.1000, steps scatter by 0.0100" in rest[-1]
    assert "within the scatter of the steps (+-0.0500)" in trial.render(replace(BASE, scatter_seconds=0.05))


def test_what_only_cuda_can_show_is_refused_in_one_sentence() -> None:
    with pytest.raises(WrongUse, match="expand-segments changes how CUDA's allocator reserves memory"):
        tried("expand-segments", asked(), 2, FOUND.strategies)


def test_every_remedy_that_can_be_tried_has_its_page() -> None:
    assert CURES.keys() <= FOUND.remedies.keys()


def in_ranks(request: TrainingRequest, ranks: int, plant: str, *, steps: int = 4) -> real_steps.RealSteps:
    """`real_steps.train` in ranks of the fork server."""
    asked_for = replace(request, steps=steps, epochs=steps, evaluate=False, drills=(*request.drills, plant))
    with tempfile.TemporaryDirectory() as folder:
        values(run_ranks(measured_rank, ranks, asked_for.to_json(), folder, timeout=120))
        return real_steps.RealSteps(memory_results.read(Path(folder)))


@pytest.mark.job
@pytest.mark.parametrize("slug", ["fully-shard", "make-buckets-lazily", "set-gradients-to-none", "no-sync"])
def test_what_a_remedy_saves_is_known_before_it_is_tried(slug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if slug == "make-buckets-lazily" and not knows_lazy_buckets():
        with pytest.raises(WrongUse, match="has no lazy_bucket_allocation"):
            tried(slug, asked(model="mlp"), 2, FOUND.strategies)
        return
    monkeypatch.setattr(real_steps, "train", in_ranks)
    without, cured = tried(slug, asked(model="mlp"), 2, FOUND.strategies)

    found = trial.try_remedy(slug, without, cured, 2)

    assert found.verified, trial.render(found)
