"""Jobs over two hosts with a kernel, and pids, in common and nothing else: every verdict is that of the whole job."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from launching import Finished
from network import Hosts, finished

from distdoctor.recording.trace.run_folder import read_job, read_run

pytestmark = [pytest.mark.job, pytest.mark.slow]

TRAIN = """
for step in range(20):
    dist.all_reduce(t)
"""
FINISH = "dist.destroy_process_group()"


def findings(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((folder / "diagnosis.json").read_text())["findings"]
    return found


def said(done: list[Finished]) -> str:
    return "\n".join(one.out + one.err for one in done)


def test_a_healthy_job_is_healthy_on_both_hosts(hosts: Hosts, script: Callable[..., Path]) -> None:
    script(TRAIN + FINISH)

    done = finished(hosts.torchrun(1))

    assert [one.code for one in done] == [0, 0], said(done)
    assert read_run(hosts.folder / "run").ranks.keys() == {0, 1}
    assert all("2 ranks" in one.err and "healthy" in one.err for one in done), said(done)


def test_a_rank_that_is_killed_and_restarted_leaves_a_job_that_finished(
    hosts: Hosts, script: Callable[..., Path]
) -> None:
    first = (
        'if rank == 1 and not os.path.exists("tried"):\n    open("tried", "w").close()\n    os.kill(os.getpid(), 9)\n'
    )
    script(first + TRAIN + FINISH)

    env = {
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"
    }  # else torch 2.15 hands the addresses of ranks that are gone to the next start
    done = finished(hosts.torchrun(1, "--max-restarts", 1, env=env))

    assert [one.code for one in done] == [0, 0], said(done)
    job = read_job(hosts.folder / "run")
    assert job is not None
    assert (job.attempt, [start.number for start in job.earlier]) == (1, [0])
    assert not findings(hosts.folder / "run")
    assert all("(SIGKILL); attempt 2 finished" in one.err for one in done), said(done)
    assert read_run(hosts.folder / "run").ranks.keys() == {0, 1}
    assert {path.name for path in (hosts.folder / "run").glob("*.trace")} == {
        f"rank-0000{rank}.a{attempt}.trace" for rank in (0, 1) for attempt in (0, 1)
    }
