"""Python stacks of a process that knows nothing of it: `py-spy dump`, without ever pausing the process."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from distdoctor.recording.py_spy_dump import ranks_named, thread_of
from distdoctor.recording.stacks import ThreadStack

# Reading takes 0.04 s (max 0.09 s measured, py-spy 0.4.3); a process that somebody else freezes in the middle must not hold us.
LIMIT_SECONDS = 5.0
NATIVE_LIMIT_SECONDS = 30.0
TRIES = 3  # a running process may change its stack while it is being read
_RANKS = ("rank", "global_rank", "local_rank")


@dataclass(frozen=True)
class PySpyDump:
    """What py-spy saw of one process, or why it saw nothing.

    `refused`: the kernel does not let us look. `way_in`: what lets us, where that is known here. `is_python` False: there is no
    Python in that process. `ranks_named` are whole numbers that user frames call `rank`, from the outermost frame inwards: how
    a rank is known whose environment does not say.
    """

    pid: int
    threads: tuple[ThreadStack, ...] = ()
    trouble: str = ""
    refused: bool = False
    is_python: bool = True
    ranks_named: tuple[int, ...] = ()
    way_in: str = ""


@cache
def program() -> str | None:
    """Where py-spy is: beside our own interpreter, else on PATH. None: it is not installed."""
    beside = Path(sys.executable).parent / "py-spy"
    return str(beside) if beside.is_file() else shutil.which("py-spy")


def dump_all(pids: Iterable[int], *, native: bool = False, user_locals: bool = False) -> dict[int, PySpyDump]:
    """One dump of each process, at the same time. Processes that cannot be read are in it with the reason."""
    pids = list(pids)
    if not pids:
        return {}
    with ThreadPoolExecutor(max_workers=min(16, len(pids))) as pool:
        dumps = pool.map(lambda pid: dump(pid, native=native, user_locals=user_locals), pids)
        return {one.pid: one for one in dumps}


def dump(pid: int, *, native: bool = False, user_locals: bool = False) -> PySpyDump:
    """The stacks of one process. Never raises; never pauses the process unless `native`, which freezes it for about 0.5 s."""
    found = PySpyDump(pid, trouble="not read")
    for _ in range(1 if native else TRIES):
        found = _dump_once(pid, native, user_locals)
        if not found.trouble or found.refused or not found.is_python or found.trouble in (_NO_ANSWER, _NOT_INSTALLED):
            break
    if native and found.trouble:  # a stopped process cannot be read this way
        return dump(pid, user_locals=user_locals)
    return found


_NOT_INSTALLED = "py-spy is not installed"
_NO_ANSWER = f"py-spy got no answer within {LIMIT_SECONDS:.0f} s"


def _dump_once(pid: int, native: bool, user_locals: bool) -> PySpyDump:
    mode = "--native" if native else "--nonblocking"
    reader = program()
    if reader is None:
        return PySpyDump(pid, trouble=_NOT_INSTALLED, way_in="pip install py-spy, into the environment of distdoctor")
    words = [reader, "dump", "--pid", str(pid), mode, "--json", "--locals"]
    limit = NATIVE_LIMIT_SECONDS if native else LIMIT_SECONDS
    try:
        done = subprocess.run(words, capture_output=True, timeout=limit, stdin=subprocess.DEVNULL, check=False)
    except subprocess.TimeoutExpired:  # run() has killed py-spy
        return PySpyDump(pid, trouble=_NO_ANSWER)
    except OSError as trouble:
        return PySpyDump(pid, trouble=f"py-spy does not start: {trouble}")
    if done.returncode:
        return _refusal(pid, done.stderr.decode("utf-8", "replace"))
    try:
        threads = json.loads(done.stdout)
        stacks = tuple(thread_of(one, user_locals) for one in threads)
    except (ValueError, KeyError, TypeError) as trouble:
        return PySpyDump(pid, trouble=f"py-spy's answer is no JSON: {trouble}")
    return PySpyDump(pid, stacks, ranks_named=ranks_named(threads, _RANKS))


def _refusal(pid: int, words: str) -> PySpyDump:
    """Why py-spy 0.4.3 failed, from what it wrote."""
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    reason = next(
        (line.removeprefix("Error: ") for line in lines if line.startswith("Error")), lines[0] if lines else ""
    )
    lower = words.lower()
    if "permission denied" in lower or "operation not permitted" in lower:
        return PySpyDump(pid, trouble="the kernel refuses ptrace", refused=True)
    missing = "failed to find python version" in lower
    return PySpyDump(
        pid, trouble="no Python runs in it" if missing else reason or "py-spy failed", is_python=not missing
    )
