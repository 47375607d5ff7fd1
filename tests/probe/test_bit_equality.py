"""The probe never changes a result: losses and parameters are the same to the last bit with and without it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import reference_training
from jobs import run_ranks, values

from distdoctor.recording.trace.run_folder import read_run

pytestmark = pytest.mark.job

TRAININGS: list[tuple[str, dict[str, Any]]] = [
    ("single", {}),
    ("dp", {}),
    ("ddp", {"accumulate": 2}),
    ("fsdp", {"precision": "bf16"}),
    ("pipeline", {"schedule": "1f1b"}),
    ("amp", {}),
    ("model-parallel", {}),
    ("tensor", {}),
    ("hybrid", {}),
]


def train_rank(rank: int, world_size: int, text: str, store: str, folder: str | None) -> dict[str, Any]:
    """One rank of a training, with every stream of the probe switched on where a folder is given."""
    import torch.distributed as dist

    if folder is not None:
        from distdoctor.probe import start

        start.start(folder)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world_size)
    return reference_training.train_rank(rank, world_size, text)


def comparable(result: dict[str, Any]) -> dict[str, Any]:
    """What must be equal: everything but the time that it took."""
    return {key: value for key, value in result.items() if "second" not in key}


@pytest.mark.parametrize(("strategy", "options"), TRAININGS, ids=[name for name, _ in TRAININGS])
def test_a_recorded_training_is_equal_to_the_last_bit(strategy: str, options: dict[str, Any], tmp_path: Path) -> None:
    ranks = 1 if strategy in ("single", "dp") else 2
    asked = reference_training.request(strategy, steps=5, **options).to_json()

    bare = values(run_ranks(train_rank, ranks, asked, str(tmp_path / "one"), None, join=False))
    probed = values(run_ranks(train_rank, ranks, asked, str(tmp_path / "other"), str(tmp_path), join=False))

    assert [comparable(result) for result in probed] == [comparable(result) for result in bare]
    recording = read_run(tmp_path)
    assert sorted(recording.ranks) == list(range(ranks))
    assert not recording.troubles
    assert all(len(log.steps) == 5 for log in recording.ranks.values())
    assert all(len(log.calls) > 0 for log in recording.ranks.values()) or ranks == 1
