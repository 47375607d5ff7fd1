"""The helper that starts ranks tells how each of them ended, and leaves none behind."""

from __future__ import annotations

import os
import signal
import time

import pytest
import torch
import torch.distributed as dist
from jobs import run_ranks, values

pytestmark = pytest.mark.job


def sum_of_ranks(rank: int, world_size: int, offset: int) -> float:
    total = torch.tensor(float(rank + offset))
    dist.all_reduce(total)
    return total.item()


def pid_then(rank: int, world_size: int, path: str, what: str) -> None:
    with open(f"{path}/{rank}", "w") as file:
        file.write(str(os.getpid()))
    if rank == 1 and what == "raise":
        raise ValueError("on purpose")
    if rank == 1 and what == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 1 and what == "leave":
        raise SystemExit(3)
    if what == "sleep":
        time.sleep(600)


def test_what_each_rank_returns_comes_back_in_order() -> None:
    assert values(run_ranks(sum_of_ranks, 3, 10)) == [33.0, 33.0, 33.0]


@pytest.mark.parametrize(("what", "exit_code"), [("raise", 1), ("die", -9), ("leave", 3)])
def test_a_rank_that_fails_is_told_apart_from_those_that_do_not(what: str, exit_code: int, tmp_path: object) -> None:
    first, second = run_ranks(pid_then, 2, str(tmp_path), what, join=False)
    assert (first.exit_code, first.error) == (0, None)
    assert second.exit_code == exit_code
    assert ("ValueError: on purpose" in (second.error or "")) == (what == "raise")
    with pytest.raises(AssertionError, match=f"rank 1 ended with {exit_code}"):
        values([first, second])


def test_ranks_that_do_not_end_are_killed_at_the_limit(tmp_path: object) -> None:
    results = run_ranks(pid_then, 2, str(tmp_path), "sleep", timeout=5, join=False)
    assert [result.timed_out for result in results] == [True, True]
    for rank in range(2):
        with open(f"{tmp_path}/{rank}") as file:
            pid = int(file.read())
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
