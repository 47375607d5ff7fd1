"""Where the machine gives a job little, or a fault comes twice: the same end, the same losses and as many processes left as under
torchrun, and what was not seen is told."""

from __future__ import annotations

import os

import pytest
from fault_list import FAULTS
from fault_stage import OURS, PLAIN, run

pytestmark = [pytest.mark.job, pytest.mark.slow]

# What the report of each says.
SAID = {
    "/proc shows no process of others": "healthy",
    "Ctrl-C twice while they train": "the job was interrupted (SIGINT)",
    "Ctrl-C twice while ranks import torch": "the job was interrupted (SIGINT)",
    "a rank's address space runs out": "DD110 certain [1]: raised RuntimeError",
    "a rank has no address space left": "healthy",
    "a rank has no file left to open": "healthy",
    "files of 1 MiB at most": "nothing was seen: 0 of 2 ranks seen: ranks 0-1 left no recording",
    "HOME is read-only": "healthy",
    "another process gets the pid of a rank": "DD110 certain [1]: was killed by a SIGKILL that a process sent",
    "a rank spawns ranks of its own": "healthy",
}
OF_ROOT = {"/proc shows no process of others", "another process gets the pid of a rank"}
BY_NAME = {fault.name: fault for fault in FAULTS}


@pytest.mark.parametrize("name", SAID)
def test_a_job_ends_as_under_torchrun_and_its_report_says_what_was_seen(name: str) -> None:
    if name in OF_ROOT and os.geteuid() != 0:
        pytest.skip("only root can mount, and choose a process's number")

    plain, ours = run(BY_NAME[name], PLAIN), run(BY_NAME[name], OURS)

    assert ours.like(plain), f"{plain}\n{ours}\n{ours.said}"
    assert SAID[name] in ours.said
