"""What the kernel holds a main thread in, where that is a file: open() of a FIFO, a file lock (and who has it), a read.

Read from /proc/PID/syscall, the links of /proc/PID/fd and /proc/locks (man 5 proc), with the permission that stacks need too.
"""

from __future__ import annotations

import os
import platform
import re
import stat
from pathlib import Path

from distdoctor.recording.stacks import FileWait
from distdoctor.recording.trace.redaction import redacted_arguments

_CALLS = {  # asm/unistd_64.h, asm-generic/unistd.h
    "x86_64": {0: "read", 2: "open", 72: "fcntl", 73: "flock", 257: "openat"},
    "aarch64": {25: "fcntl", 32: "flock", 56: "openat", 63: "read"},
}
_LONGEST_PATH = 4096  # PATH_MAX
_AT_FDCWD = -100
_LOCK = re.compile(
    r"(?P<number>\d+): (?P<waits>-> *)?(?:FLOCK|POSIX|OFDLCK) +\S+ +\S+ +(?P<pid>-?\d+) (?P<file>[0-9a-f]+:[0-9a-f]+:\d+) "
)


def wait_of(pid: int) -> FileWait | None:
    """The file that the main thread waits for; None where it waits for none, runs, or may not be looked at."""
    try:
        words = Path(f"/proc/{pid}/syscall").read_text().split()
        call = _CALLS.get(platform.machine(), {}).get(int(words[0])) if words[0] != "running" else None
        return _wait(pid, call, [int(word, 16) for word in words[1:4]]) if call is not None else None
    except (OSError, ValueError, IndexError):
        return None


def _wait(pid: int, call: str, given: list[int]) -> FileWait | None:
    if call in ("open", "openat"):
        folder, text = ("cwd", given[0]) if call == "open" else (_folder(given[0]), given[1])
        path = os.path.join(os.readlink(f"/proc/{pid}/{folder}"), _text_at(pid, text))
        return FileWait("open", path, _kind(path, f"/proc/{pid}/root{path}"))
    path, link = os.readlink(f"/proc/{pid}/fd/{given[0]}"), f"/proc/{pid}/fd/{given[0]}"
    if call == "read":
        return FileWait("read", path, _kind(path, link))
    holder = _holder(pid)
    return FileWait(call, path, _kind(path, link), holder, _command(holder)) if holder is not None else None


def _folder(number: int) -> str:
    """Which entry of /proc/PID the folder of an openat() is."""
    signed = (number & 0xFFFFFFFF) - (1 << 32 if number & 0x80000000 else 0)
    return "cwd" if signed == _AT_FDCWD else f"fd/{signed}"


def _text_at(pid: int, address: int) -> str:
    """The path at an address of the process. ValueError: it is not there."""
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        memory.seek(address)
        rest = 4096 - address % 4096  # the page after it may not be there
        return os.fsdecode(memory.read(min(rest, _LONGEST_PATH)).partition(b"\0")[0])


def _kind(path: str, way: str) -> str:
    """What the file is that its process knows by `path`, and we by `way`."""
    mode = os.stat(way).st_mode
    if stat.S_ISFIFO(mode):
        return "FIFO"
    if stat.S_ISSOCK(mode):
        return "socket"
    if stat.S_ISCHR(mode):
        return "terminal" if path.startswith(("/dev/tty", "/dev/pts/", "/dev/console")) else "device"
    return "file"


def _holder(pid: int) -> int | None:
    """Who has the lock that a process waits for: its pid, 0 where the kernel names nobody; None where it waits for none.

    A lock and those who wait for it stand in a row and share a number.
    """
    locks = [match for match in map(_LOCK.match, Path("/proc/locks").read_text().splitlines(True)) if match]
    waited = [one for one in locks if one["waits"] and int(one["pid"]) == pid]
    if not waited:
        return None
    holders = [int(one["pid"]) for one in locks if one["number"] == waited[0]["number"] and not one["waits"]]
    return max([0, *holders])


def _command(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    except OSError:
        return ""
    shown = [os.path.basename(os.fsdecode(words[0])), *redacted_arguments(map(os.fsdecode, words[1:]))]
    return " ".join(" ".join(shown).split())  # `python -c` has a whole program there
