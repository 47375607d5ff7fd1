"""How ranks ended, seen from outside: whose doing it was."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from distdoctor.launch.ends import Ends


@pytest.fixture
def ranks() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Two processes that only wait."""
    command = [sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(2)]
    for process in processes:
        assert process.stdout is not None
        process.stdout.readline()
    yield processes
    for process in processes:
        process.kill()
        process.communicate()


def test_a_rank_that_its_parent_collects_first_was_still_ended_by_the_launcher(
    ranks: list[subprocess.Popen[bytes]],
) -> None:
    ends = Ends()
    ends.watch({rank: process.pid for rank, process in enumerate(ranks)})
    ends.closing()
    with ends._lock:  # we do not get to look before its parent has
        ranks[1].terminate()
        ranks[1].wait()
    ends.closing()  # whoever ends a job may say so again while some ranks are left

    ends.correct(1, exit_code=None, signal=signal.SIGTERM)
    end = ends.stop()[1]

    assert (end.signal, end.ended_by_launcher) == (signal.SIGTERM, True)


def test_a_rank_that_is_killed_before_anybody_ends_the_job_is_killed_by_itself(
    ranks: list[subprocess.Popen[bytes]],
) -> None:
    ends = Ends()
    ends.watch({rank: process.pid for rank, process in enumerate(ranks)})
    ranks[0].kill()
    ranks[0].wait()
    ends.closing()
    ends.correct(0, exit_code=None, signal=signal.SIGKILL)
    found = ends.stop()

    assert {rank: (end.signal, end.ended_by_launcher) for rank, end in found.items()} == {0: (signal.SIGKILL, False)}
