"""The threads of a process that run no Python: a backend's own, read by pystack where it is installed (extra `native`)."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from distdoctor.recording.stacks import Frame, ThreadStack

LIMIT_SECONDS = 30.0  # 0.9 s a rank (pystack 1.7.2, gloo); symbols of a cold disk take longer
_THREAD = re.compile(r"^Traceback for thread (\d+)(?: \(([^)]*)\))?")
_FRAME = re.compile(r'^\s+\(C\) File "(.*)", line (\d+), in (.*) \((/[^()]*)\)$')
_PYTHON = re.compile(r"^\s+\(Python\) ")


def program() -> str | None:
    """Where pystack is: beside our own interpreter, else on PATH. None: not installed."""
    beside = Path(sys.executable).parent / "pystack"
    return str(beside) if beside.is_file() else shutil.which("pystack")


def cpp_threads_of(pids: Iterable[int]) -> dict[int, tuple[ThreadStack, ...]]:
    """pid -> its threads without any Python frame. Pauses each process for 0.5 s to 1 s. Never raises; empty without pystack."""
    pids, found = list(pids), program()
    if found is None or not pids:
        return {}
    with ThreadPoolExecutor(max_workers=min(16, len(pids))) as pool:
        return dict(zip(pids, pool.map(lambda pid: _read(found, pid), pids), strict=True))


def _read(pystack: str, pid: int) -> tuple[ThreadStack, ...]:
    words = [pystack, "--no-color", "remote", "--native-all", str(pid)]
    try:
        done = subprocess.run(words, capture_output=True, timeout=LIMIT_SECONDS, stdin=subprocess.DEVNULL, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return tuple(parse(done.stdout.decode("utf-8", "replace")))


def parse(text: str) -> Iterator[ThreadStack]:
    """The threads in pystack's text that have C or C++ frames only; frames innermost first, their paths those of libraries."""
    thread, name, frames, has_python = 0, "", list[Frame](), False
    for line in [*text.splitlines(), "Traceback for thread 0"]:
        head, frame = _THREAD.match(line), _FRAME.match(line)
        if head:
            if frames and not has_python:
                yield ThreadStack(thread, tuple(reversed(frames)), name)
            thread, name, frames, has_python = int(head[1]), head[2] or "", [], False
        elif frame and not frame[3].startswith("???"):
            library = frame[4] if ".so" in frame[4] else ""
            frames.append(Frame(short_name(frame[3]), library, int(frame[2]) if library else 0))
        elif _PYTHON.match(line):
            has_python = True


def short_name(symbol: str) -> str:
    """`c10d::ProcessGroupGloo::runLoop` of a symbol with arguments and templates."""
    symbol = symbol.removesuffix(" (inlined)").replace("(anonymous namespace)::", "")
    kept, depth = [], 0
    for at, letter in enumerate(symbol):
        if letter in "<(" and symbol[:at].rpartition("::")[2] != "operator":
            depth += 1
        if not depth:
            kept.append(letter)
        if letter in ">)" and depth:
            depth -= 1
    return "".join(kept).partition("@@")[0].strip()[:120]
