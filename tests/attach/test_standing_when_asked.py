"""How long a rank has stood still is what the kernel says when it is asked, whatever our own look takes on a busy machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from distdoctor.attach import py_spy
from distdoctor.attach.kernel import facts_of
from distdoctor.attach.processes import FoundJob, HostProcesses
from distdoctor.attach.snapshot import Manner, look_at
from distdoctor.recording.stacks import ProcessStacks

pytestmark = pytest.mark.job
NAPS = "import time\nprint(flush=True)\nwhile True: time.sleep(0.02)"
SLEEPS = "import time\nprint(flush=True)\ntime.sleep(60)"


@contextmanager
def running(program: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def seen(process: subprocess.Popen[bytes]) -> ProcessStacks:
    host = HostProcesses.now()
    job = FoundJob({0: host.processes[process.pid]}, world_size=1)
    (stacks,) = look_at([job], host, Manner(samples=2, interval_seconds=0.1))
    found = stacks.ranks[0].process
    assert found is not None
    return found


def test_a_reader_that_is_slow_makes_nobody_stand_still(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = tmp_path / "py-spy"
    slow.write_text(f'#!/bin/sh\nsleep 1\nexec {py_spy.program()} "$@"\n')
    slow.chmod(0o755)
    monkeypatch.setattr(py_spy, "program", lambda: str(slow))

    with running(NAPS) as process:
        looks = [seen(process) for _ in range(3)]  # a busy machine may let it wait for its core in one of them

    assert all(found.main is not None for found in looks), [found.trouble for found in looks]
    assert min(1.0 if found.still_seconds is None else found.still_seconds for found in looks) < 0.5


def test_a_rank_that_sleeps_has_stood_still_since_it_fell_asleep() -> None:
    with running(SLEEPS) as process:
        end = time.monotonic() + 30  # on a busy machine it may fall asleep later
        found = seen(process)
        while (found.still_seconds or 0.0) < 1 and time.monotonic() < end:
            time.sleep(0.2)
            found = seen(process)

    assert found.still_seconds is not None
    assert 1 <= found.still_seconds < 30


def test_without_py_spy_the_kernel_still_says_who_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(py_spy, "program", lambda: None)

    with running(SLEEPS) as process:
        process.send_signal(signal.SIGSTOP)
        found = seen(process)

    assert found.is_stopped
    assert (found.trouble, found.threads) == ("py-spy is not installed", ())
    assert found.way_in == "pip install py-spy, into the environment of distdoctor"


def test_how_long_it_has_stood_is_counted_on_the_core_that_it_ran_on() -> None:
    """The clocks of two cores drift apart by what interrupts and the hypervisor take from each."""
    allowed = os.sched_getaffinity(0)
    sleepers = []
    try:
        for core in sorted(allowed)[:4]:
            sleeper = subprocess.Popen([sys.executable, "-c", SLEEPS], stdout=subprocess.PIPE)
            os.sched_setaffinity(sleeper.pid, {core})
            assert sleeper.stdout is not None
            sleeper.stdout.readline()
            sleepers.append((sleeper, time.monotonic()))
        time.sleep(2)
        for sleeper, since in sleepers:
            found = facts_of(sleeper.pid)
            assert found is not None
            if found.still_seconds is None:
                pytest.skip("the kernel does not tell when a thread last ran")
            assert abs(found.still_seconds - (time.monotonic() - since)) < 0.7
    finally:
        for sleeper, _ in sleepers:
            sleeper.kill()
            sleeper.communicate()
    assert os.sched_getaffinity(0) == allowed
