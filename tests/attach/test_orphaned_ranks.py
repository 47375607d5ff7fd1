"""Ranks outlive their launcher: whoever takes their processes in did not start them, and the job is not named by it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from looking import free_port

from distdoctor.attach.jobs import all_jobs
from distdoctor.attach.processes import FoundJob, HostProcesses
from distdoctor.errors import NothingToInspect

pytestmark = pytest.mark.job  # whatever else runs on this machine is looked at as well
IDLE = "import time; time.sleep(100)"
# What torch's agent does: a rank is a process in a session of its own. This one then ends.
AGENT = f"""
import os, subprocess, sys
for rank in (0, 1):
    env = {{**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "none"}}
    subprocess.Popen([sys.executable, "-c", "{IDLE}"], env=env, start_new_session=True)
"""
SHELL = 'for RANK in 0 1; do export RANK; "$@" & done; wait'


@contextlib.contextmanager
def job_at(port: str) -> Iterator[FoundJob]:
    """The job of two ranks, once both are there; they are gone afterwards."""
    late = time.monotonic() + 60
    found: list[FoundJob] = []
    while not found:
        assert time.monotonic() < late, "the job is not found"
        with contextlib.suppress(NothingToInspect):
            jobs = [job for job in all_jobs(HostProcesses.now()) if len(job.ranks) == 2]
            found = [job for job in jobs if (job.ranks[0].environment or {}).get("MASTER_PORT") == port]
    try:
        yield found[0]
    finally:
        for rank in found[0].ranks.values():
            os.kill(rank.pid, signal.SIGKILL)


def test_ranks_of_an_agent_that_has_ended_have_no_launcher_and_are_named_by_their_script() -> None:
    port = str(free_port())
    subprocess.run([sys.executable, "-c", AGENT], env={**os.environ, "MASTER_PORT": port}, check=True)

    with job_at(port) as job:
        assert job.launcher is None
        assert job.command == f"{os.path.basename(sys.executable)} -c {IDLE}"
        assert job.absent == ()


def test_ranks_that_a_shell_has_started_are_named_by_it() -> None:
    port = str(free_port())
    env = {**os.environ, "MASTER_PORT": port, "WORLD_SIZE": "2"}
    words = [
        "setsid",
        "--fork",
        "sh",
        "-c",
        SHELL,
        "sh",
        sys.executable,
        "-c",
        IDLE,
    ]  # no child of ours: we are Python, too
    subprocess.run(words, env=env, check=True)

    with job_at(port) as job:
        assert job.launcher is not None
        assert job.launcher.arguments[:3] == ("sh", "-c", SHELL)
