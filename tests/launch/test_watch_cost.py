"""Watching a job costs the launcher at most a hundredth of a core."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from launching import Command

pytestmark = [pytest.mark.job, pytest.mark.slow]
SECONDS = 12


def test_watching_a_busy_job_takes_at_most_one_percent_of_a_core(
    start: Callable[..., Command], script: Callable[..., Path], tmp_path: Path
) -> None:
    script("open(f'up-{rank}', 'w').close()\nwhile True: dist.all_reduce(t); time.sleep(0.002)")
    command = start("run", "--nproc", 2, "train.py")
    command.wait_for(lambda: all((tmp_path / f"up-{rank}").exists() for rank in (0, 1)))
    time.sleep(2)  # the first look imports nothing any more after that

    before = watchers_seconds(command.process.pid)
    time.sleep(SECONDS)
    spent = watchers_seconds(command.process.pid) - before

    # The kernel counts in hundredths of a second; torch's own agent thread is not ours to count.
    assert spent / SECONDS <= 0.015


def watchers_seconds(pid: int) -> float:
    """CPU seconds of all threads of the launcher but the main one, which is torch's agent."""
    threads = psutil.Process(pid).threads()
    return sum(thread.user_time + thread.system_time for thread in threads if thread.id != pid)
