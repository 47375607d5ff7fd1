"""One test body in two ranks, by the mark and by one spawn per test. `pytest_time.py` runs it."""

from __future__ import annotations

import os

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

REPEATS = int(os.environ.get("REPEATS", "5"))


def body() -> None:
    total = torch.ones(1000)
    dist.all_reduce(total)
    assert total.sum().item() == 2000


def spawned(rank: int, store: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    body()
    dist.destroy_process_group()


@pytest.mark.parametrize("number", range(REPEATS))
class TestInterleaved:
    @pytest.mark.distdoctor(nproc=2)
    def test_by_mark(self, number: int) -> None:
        body()

    def test_by_spawn(self, number: int, tmp_path) -> None:
        mp.spawn(spawned, (str(tmp_path / "store"),), nprocs=2)
