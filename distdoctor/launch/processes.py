"""What /proc tells about a process of somebody else: whether it is still the same one, and how it ended."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import psutil

from distdoctor.recording.trace.process_key import ProcessKey, boot_id, pid_namespace, started_at


@dataclass(frozen=True)
class Status:
    """One reading of /proc/PID/stat. `started` is in clock ticks since boot: two processes with one pid differ in it.

    `wait_status` is what the parent will get from wait(), meaningful once `ended`.
    """

    started: int
    ended: bool
    wait_status: int


def this_process() -> ProcessKey:
    """We ourselves."""
    return key_of(os.getpid())


def key_of(pid: int) -> ProcessKey:
    """The process of this machine that has this pid now."""
    return ProcessKey(pid, started_at(pid), os.uname().nodename[:63], boot_id(), pid_namespace())


def status(pid: int) -> Status | None:
    """The process now; None when it is gone, that is, when its parent has collected it."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return Status(started=int(fields[19]), ended=fields[0] in (b"Z", b"X"), wait_status=int(fields[49]))
    except (OSError, ValueError, IndexError):
        return None


def is_alive(pid: int, started: int = 0) -> bool:
    """Whether the process runs (a zombie does not). With `started`, whether it is still the same one."""
    now = status(pid)
    return now is not None and not now.ended and (not started or now.started == started)


def descends_from(pid: int, ancestor: int) -> bool:
    """Whether a process is this one, or one that it has started, itself or through others."""
    try:
        return ancestor in (pid, *(parent.pid for parent in psutil.Process(pid).parents()))
    except psutil.Error:
        return False


def send(pid: int, signal: int) -> None:
    """Send a signal to one process; nothing happens when it has gone."""
    try:
        os.kill(pid, signal)
    except ProcessLookupError:
        return


def exit_code_and_signal(wait_status: int) -> tuple[int | None, int]:
    """(exit code, 0) of a process that exited, (None, signal) of one that was killed."""
    if os.WIFSIGNALED(wait_status):
        return None, os.WTERMSIG(wait_status)
    return os.WEXITSTATUS(wait_status), 0
