"""A training that was saved and resumed ends where an uninterrupted one ends, to the last bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from reference_training import request, train

from distdoctor.errors import WrongUse

pytestmark = pytest.mark.job

PER_EPOCH = 1438 // 256
FEW = {"batch_size": 256, "evaluate": False}


def ending(results: list[dict[str, Any]]) -> list[tuple[int, str]]:
    return [(result["steps"], result["parameters_sha256"]) for result in results]


@pytest.mark.parametrize(
    ("strategy", "options"),
    [
        ("ddp", {}),
        ("amp", {}),
        ("fsdp", {}),
        ("pipeline", {"schedule": "interleaved"}),
        ("model-parallel", {"precision": "fp16"}),
        ("tensor", {}),
        ("hybrid", {"mesh": "shard=1,tensor=2"}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_saved_after_one_epoch_and_resumed(strategy: str, options: dict[str, Any], tmp_path: Path) -> None:
    path = str(tmp_path / "checkpoint")
    whole = train(strategy, 2, epochs=2, **FEW, **options)
    first = train(strategy, 2, epochs=1, save=path, **FEW, **options)
    rest = train(strategy, 2, epochs=2, resume=path, **FEW, **options)
    assert ending(rest) == ending(whole)
    assert [result["losses"] for result in first] != [result["losses"] for result in rest]
    assert first[0]["losses"] + rest[0]["losses"] == whole[0]["losses"]
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["checkpoint"]


def test_saved_within_an_epoch_and_resumed_reads_each_sample_once(tmp_path: Path) -> None:
    path = str(tmp_path / "checkpoint")
    options = {**FEW, "accumulate": 2, "epochs": 2}
    whole = train("ddp", 2, **options)
    first = train("ddp", 2, steps=PER_EPOCH + 2, save=path, **options)
    rest = train("ddp", 2, resume=path, **options)
    assert first[0]["losses"] + rest[0]["losses"] == whole[0]["losses"]
    assert ending(rest) == ending(whole)


def test_a_saved_replica_loads_into_the_plain_model(tmp_path: Path) -> None:
    """What DDP saves is `module.state_dict()`: no `module.` in front of the names."""
    from distdoctor.workloads.models.mlp import make
    from distdoctor.workloads.shapes import Shapes

    path = str(tmp_path / "new folder" / "checkpoint")
    train("ddp", 2, epochs=1, save=path, **FEW)
    state = torch.load(path, weights_only=True)
    make(Shapes((1, 8, 8), 10)).load_state_dict(state["model"])
    assert state["progress"]["step"] == PER_EPOCH


def test_a_finished_training_resumes_to_nothing(tmp_path: Path) -> None:
    path = str(tmp_path / "checkpoint")
    first = train("ddp", 2, epochs=1, save=path, **FEW)
    again = train("ddp", 2, epochs=1, resume=path, **FEW)
    assert ending(again) == ending(first)
    assert again[0]["losses"] == []


def test_another_kind_of_checkpoint_is_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "checkpoint")
    train("ddp", 2, epochs=1, save=path, **FEW)
    with pytest.raises(AssertionError, match="is one whole file, which fsdp does not read"):
        train("fsdp", 2, resume=path, **FEW)


def test_a_missing_checkpoint_is_refused_before_any_rank_starts() -> None:
    from distdoctor.workloads.request import validate

    with pytest.raises(WrongUse, match="there is no checkpoint at /nowhere"):
        validate(request("ddp", resume="/nowhere"), 2)
