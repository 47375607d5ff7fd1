"""Strategies of one process say what their other ranks do, and dp says when it is no dp."""

from __future__ import annotations

import pytest
from reference_training import train

pytestmark = pytest.mark.job


def test_single_leaves_the_other_ranks_without_work() -> None:
    first, second = train("single", 2, steps=2)
    assert len(first["losses"]) == 2
    assert second["losses"] == []
    assert second["parameters_sha256"] is None
    assert first["notes"] == ["single trains in one process; 1 of the 2 ranks has nothing to do"]


def test_dp_without_two_gpus_says_that_it_is_a_plain_module() -> None:
    (result,) = train("dp", 1, steps=2)
    assert result["notes"] == [
        "dp runs as a plain module: it splits a batch over GPUs, and this process trains on no GPU"
    ]


def test_model_parallel_in_one_process_says_that_nothing_is_split() -> None:
    (result,) = train("model-parallel", 1, steps=2)
    assert result["notes"] == [
        "model-parallel trains the model in one piece: there is one rank, and not two GPUs to put parts on"
    ]


@pytest.mark.parametrize("strategy", ["ddp", "amp", "fsdp", "pipeline", "tensor", "hybrid"])
def test_every_strategy_runs_in_a_world_of_one(strategy: str) -> None:
    (result,) = train(strategy, 1, steps=2)
    assert len(result["losses"]) == 2
