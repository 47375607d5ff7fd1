"""What a process was started with is told without its secrets, whoever looks: a hung job's stacks are kept and sent on."""

from __future__ import annotations

import os
import subprocess
import sys

from distdoctor.attach.attached import recording_of
from distdoctor.attach.processes import FoundJob, HostProcesses, Process
from distdoctor.attach.waits import _command
from distdoctor.recording.stacks import Stacks

ARGUMENTS = ("train.py", "--token", "canary1", "--api-key=canary2", "--db", "postgres://u:canary3@db/x", "--lr", "0.1")
TOLD = "train.py --token [redacted] --api-key=[redacted] --db postgres://[redacted]@db/x --lr 0.1"


def rank_zero() -> Process:
    return Process(os.getpid(), 1, 1.0, ("/usr/bin/python3", *ARGUMENTS), {}, os.getuid(), "sleeping", sys.executable)


def test_the_command_of_a_rank_has_no_secrets() -> None:
    assert rank_zero().command == f"python3 {TOLD}"


def test_a_job_that_is_looked_at_from_outside_has_no_secrets_in_its_command_line() -> None:
    recording = recording_of(FoundJob({0: rank_zero()}), Stacks({}), HostProcesses({}))

    assert recording.job.argv == ("/usr/bin/python3", *TOLD.split())


def test_the_command_of_who_holds_a_lock_has_no_secrets_and_is_one_line() -> None:
    holds = "\nimport sys\nprint(flush=True)\nsys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", holds, *ARGUMENTS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        command = _command(holder.pid)
        holder.communicate()

    assert command.endswith(TOLD)
    assert "\n" not in command
