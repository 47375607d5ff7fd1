"""The pid of a rank that has ended may be another process's by the time somebody looks: that one is never taken for the rank."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from pids import CannotChoose, process_under

from distdoctor.attach.processes import FoundJob, HostProcesses
from distdoctor.attach.snapshot import Manner, look_at
from distdoctor.launch.ends import Ends
from distdoctor.recording.recording import RankEnd
from distdoctor.recording.trace.process_key import boot_id, pid_namespace, started_at
from distdoctor.recording.trace.run_folder import MEMORY_FILE, trace_paths

IDLE = [sys.executable, "-c", "import time; time.sleep(60)"]
Replaced = Callable[[subprocess.Popen[bytes]], subprocess.Popen[bytes]]


@pytest.fixture
def replaced() -> Iterator[Replaced]:
    """Ends a process and starts another one under its pid."""
    with ExitStack() as strangers:

        def replace(process: subprocess.Popen[bytes]) -> subprocess.Popen[bytes]:
            process.kill()
            process.wait()
            time.sleep(2 / os.sysconf("SC_CLK_TCK"))  # start times, by which processes are told apart, count ticks
            try:
                return strangers.enter_context(process_under(process.pid, IDLE))
            except CannotChoose as reason:
                pytest.skip(f"nobody lets us choose a pid: {reason}")

        yield replace


def test_hang_dump_shows_no_stack_of_whoever_took_over_the_pid_of_a_rank(replaced: Replaced) -> None:
    """Between the list of processes and the look at each of them, a rank ends."""
    rank = subprocess.Popen(IDLE)
    host = HostProcesses.now()
    job = FoundJob({0: host.processes[rank.pid]}, world_size=1)
    stranger = replaced(rank)

    (stacks,) = look_at([job], host, Manner(samples=2, interval_seconds=0.1))

    seen = stacks.ranks[0].process
    assert seen is not None
    assert (seen.pid, seen.state, seen.threads) == (stranger.pid, "X", ())
    assert seen.trouble == "it ended while we looked"
    assert stranger.poll() is None


def test_the_launcher_neither_waits_for_nor_signals_whoever_took_over_the_pid_of_a_rank(replaced: Replaced) -> None:
    """The rank of another launcher is known by its trace, and may have ended when that is read."""
    rank = subprocess.Popen(IDLE)
    started = started_at(rank.pid)
    stranger = replaced(rank)
    ends = Ends()

    ends.watch({3: rank.pid}, started={3: started})
    seen = ends.seen()
    ends.signal(signal.SIGKILL)
    ends.stop()

    assert [(number, end.exit_code, end.signal) for number, end in seen.items()] == [(3, None, 0)]
    assert isinstance(seen[3], RankEnd)
    assert stranger.poll() is None


def test_a_trace_in_memory_is_read_of_the_process_that_wrote_it_and_of_no_other(tmp_path: Path) -> None:
    """An empty file's name says where it is; a process of the same pid may have a memory file of the same number."""
    memory = os.memfd_create(MEMORY_FILE)
    here = f"{os.getpid()}-{memory}-{boot_id()}-{pid_namespace()}"
    started = started_at(os.getpid())
    try:
        for name, found in ((f"{here}-{started}", True), (f"{here}-{started - 1}", False), (here, True)):
            folder = tmp_path / name
            folder.mkdir()
            empty = folder / f"rank-00000.a0.trace.memory-{name}"
            empty.touch()

            assert trace_paths(folder) == {0: Path(f"/proc/{os.getpid()}/fd/{memory}") if found else empty}
    finally:
        os.close(memory)
