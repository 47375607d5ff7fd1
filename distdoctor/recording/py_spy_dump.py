"""What `py-spy dump` prints of processes, taken apart: its JSON and its text.

The text has short paths (`torch/nn/modules/module.py`, `train.py`), in which an installed package looks like the user's own: they
get the folder back in which such a file lies.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from distdoctor.recording.source_line import PASSED_OVER
from distdoctor.recording.stacks import Frame, ThreadStack
from distdoctor.recording.trace.layout import whole_number

# Arguments of torch's functions that say what a call waits for. Nothing else of a frame's variables leaves this module.
ARGUMENTS = frozenset(
    {
        "src", "dst", "op", "group", "async_op", "tag", "group_src", "group_dst", "peer", "ranks", "backend", "world_size",
        "rank", "store", "timeout", "i", "nprocs", "worker_id", "group_name", "mesh_shape", "device_ids", "key",
    }
)  # fmt: skip
MOST_FRAMES = 200  # kept per thread; deeper is a recursion that shows at its ends
MOST_THREADS = 1000  # of a process
LONGEST_LINE = 4000  # letters
MAIN = "MainThread"

_PROCESS = re.compile(r"Process (\d{1,10}): ?(.{0,1000})")
_PYTHON = re.compile(r"Python v(\d)\.(\d{1,2})")
_PARENT = re.compile(r"Parent Process (\d{1,10})\b")
_THREAD = re.compile(r'Thread (0x[0-9A-Fa-f]{1,16}|\d{1,10}) \(([a-z+]{1,20})\)(?:: "([^"]{0,200}))?')
_INDENTED = re.compile(r" {4}(?: {4,8})?\S")
_VALUE = re.compile(r" {12}([A-Za-z_]\w{0,100}): (.{0,1000})")
_MOST_BEFORE = 8  # lines
_COLOUR = re.compile(r"\x1b\[[\d;]{0,20}m")
_RANKS = ("rank", "global_rank")  # what programs call their own
# Packages that are seen in the stacks of ranks, by the first folder of their short paths.
_PACKAGES = frozenset(
    {
        "torch", "numpy", "torchvision", "torchdata", "torchtitan", "transformers", "accelerate", "datasets", "lightning",
        "pytorch_lightning", "lightning_fabric", "deepspeed", "ray", "fsspec", "pandas", "PIL", "huggingface_hub", "peft", "trl",
        "webdataset", "apex", "megatron", "requests", "urllib3", "tqdm", "wandb", "s3fs", "pyarrow", "zmq", "setuptools",
    }
)  # fmt: skip


@dataclass(frozen=True)
class StackDump:
    """One process, as one dump shows it. `pid` 0: it does not say. `running`: its main thread was on a core, None where that is
    not told. `rank`: as it is named in its frames or beside it, -1 where it is not. `identity` tells processes without a pid
    apart."""

    pid: int
    threads: tuple[ThreadStack, ...]
    command: str = ""
    parent: int = 0
    running: bool | None = None
    rank: int = -1
    identity: str = ""
    printer: str = ""  # of one in a log: what stands before its lines
    has_whole_paths: bool = field(default=False, compare=False)


def thread_of(thread: Mapping[str, Any], user_locals: bool = False) -> ThreadStack:
    """One thread of py-spy's JSON.

    KeyError, TypeError, ValueError: it is none.
    """
    every = [frame for frame in thread["frames"] if not str(frame["filename"]).endswith(PASSED_OVER)]
    return ThreadStack(
        os_id=int(thread.get("os_thread_id") or 0),
        frames=tuple(_frame(frame, user_locals) for frame in every[:MOST_FRAMES]),
        name=str(thread.get("thread_name") or ""),
        holds_gil=bool(thread.get("owns_gil")),
    )


def _frame(frame: Mapping[str, Any], user_locals: bool) -> Frame:
    path = str(frame["filename"])
    keep = "/torch/" in path
    arguments = {
        str(local["name"]): str(local.get("repr"))
        for local in frame.get("locals") or ()
        if user_locals or (keep and local.get("arg") and local["name"] in ARGUMENTS)
    }
    return Frame(own_name(str(frame["name"])), path, int(frame.get("line") or 0), arguments)


def own_name(name: str) -> str:
    """From Python 3.11 on py-spy gives `Class.method` and `outer.<locals>.inner`; recordings know functions by their own name."""
    return name.rpartition(".")[2]


def ranks_named(threads: Iterable[Mapping[str, Any]], names: Iterable[str]) -> tuple[int, ...]:
    """The whole numbers that frames call so, from the outermost frame inwards."""
    wanted, found = frozenset(names), []
    for thread in threads:
        for frame in reversed(thread["frames"]):
            for local in frame.get("locals") or ():
                words = str(local.get("repr"))
                if local["name"] in wanted and words.isdigit():
                    found.append(int(words))
    return tuple(found)


def of_json(content: Any) -> list[StackDump]:
    """The processes in what `py-spy dump --json` has written.

    ValueError: it is none.
    """
    if not isinstance(content, list) or not content:
        raise ValueError("it holds no threads")
    try:
        by_pid: dict[int, list[Mapping[str, Any]]] = {}
        for thread in content:
            by_pid.setdefault(int(thread.get("pid") or 0), []).append(thread)
        return [_of_threads(pid, threads[:MOST_THREADS]) for pid, threads in by_pid.items()]
    except (KeyError, TypeError, AttributeError, OverflowError) as trouble:
        raise ValueError(f"it holds no threads: {type(trouble).__name__}") from None


def _of_threads(pid: int, threads: list[Mapping[str, Any]]) -> StackDump:
    infos = (one.get("process_info") for one in threads)
    about: Mapping[str, Any] = next((info for info in infos if isinstance(info, dict)), {})
    parent = about["parent"] if isinstance(about.get("parent"), dict) else {}
    found = [thread_of(one) for one in threads]
    running = [bool(raw.get("active")) for raw, one in zip(threads, found, strict=True) if _is_main(one, pid)]
    named = ranks_named(threads, _RANKS)
    return StackDump(
        pid,
        _with_main(found, pid),
        str(about.get("command_line") or "")[:1000],
        int(parent.get("pid") or 0),
        running[0] if running else None,
        named[0] if named else -1,
        has_whole_paths=True,
    )


def _is_main(thread: ThreadStack, pid: int) -> bool:
    return thread.name == MAIN or (not thread.name and thread.os_id == pid)


def _with_main(threads: list[ThreadStack], pid: int) -> tuple[ThreadStack, ...]:
    """The threads, the main one under the number of its process: a container has numbers of its own."""
    return tuple(replace(one, os_id=pid) if _is_main(one, pid) else one for one in threads)


def is_begin(line: str) -> bool:
    """Whether a line is the first one of a process in py-spy's text."""
    return _PROCESS.match(line) is not None


def is_part(line: str) -> bool:
    """Whether a line is one of those that follow the first."""
    return any(one.match(line) for one in (_PYTHON, _PARENT, _THREAD, _INDENTED))


def looks_like_text(lines: Iterable[str]) -> bool:
    """Whether these lines are of py-spy's text, with a few words of somebody's own before it; else it stands in a log."""
    begun, before = False, 0
    for line in (_COLOUR.sub("", one) for one in lines if one.strip()):
        begun = begun or is_begin(line)
        before += not begun
        if before > _MOST_BEFORE:
            return False
        if begun and (_PYTHON.match(line) or _THREAD.match(line)):
            return True
    return False


class _Reading:
    """One process of the text, line by line."""

    def __init__(self, pid: int, command: str, rank: int) -> None:
        self.pid, self.command, self.rank, self.parent, self.version = pid, command, rank, 0, "3"
        self.running: bool | None = None
        self.threads: list[tuple[int, str, bool, list[Frame]]] = []
        self._values: dict[str, str] | None = None  # arguments of the last frame, None outside of them

    def see(self, line: str) -> bool:
        """Take one line. False: it is none of py-spy's."""
        if found := _PYTHON.match(line):
            self.version = f"{found[1]}.{found[2]}"
        elif found := _PARENT.match(line):
            self.parent = int(found[1])
        elif found := _THREAD.match(line):
            self._begin(found)
        elif self.threads and line.startswith(" " * 8):
            self._see_value(line)
        elif self.threads and line.startswith(" " * 4):
            self._see_frame(line)
        else:
            return False
        return True

    def _begin(self, found: re.Match[str]) -> None:
        name, is_hex = found[3] or "", found[1].startswith("0x")
        os_id = 0 if is_hex else int(found[1])
        if name == MAIN or (not name and os_id == self.pid):
            os_id, self.running = self.pid, found[2].startswith("active")
        self._values = None
        if len(self.threads) < MOST_THREADS:
            self.threads.append((os_id, name, "gil" in found[2], []))

    def _see_frame(self, line: str) -> None:
        name, _, place = line.strip().removesuffix(")").rpartition(" (")
        path, _, number = place.rpartition(":")
        line_number = whole_number(number) if len(number) < 10 else None
        if line_number is None:
            path, line_number = place, 0
        frames = self.threads[-1][3]
        self._values = {}
        if name and path and PASSED_OVER not in line and len(frames) < MOST_FRAMES:
            frames.append(Frame(own_name(name), path, line_number, self._values))

    def _see_value(self, line: str) -> None:
        values = self._values
        found = _VALUE.match(line)
        if found is None or values is None or not self.threads[-1][3]:
            return
        frame, (name, value) = self.threads[-1][3][-1], found.groups()
        if name in ARGUMENTS and ("torch/" in frame.path):
            values.setdefault(name, value)
        if name in _RANKS and value.isdecimal() and value.isascii() and len(value) < 8:
            self.rank = int(value)  # the outermost frame comes last

    def dump(self) -> StackDump:
        mains = [frames for os_id, _, _, frames in self.threads if os_id == self.pid] or [
            frames for *_, frames in self.threads
        ]
        scripts = [f.path for f in reversed(mains[0]) if f.function == "<module>"][:1] if mains else []
        threads = tuple(
            ThreadStack(os_id, tuple(_whole(f, self.version, scripts) for f in frames), name, gil)
            for os_id, name, gil, frames in self.threads
        )
        return StackDump(self.pid, threads, self.command, self.parent, self.running, self.rank)


def of_text(lines: Iterable[str], rank_in: re.Pattern[str]) -> Iterator[StackDump]:
    """The processes in py-spy's text. `rank_in` finds the rank in a line of somebody's own that stands before a process."""
    reading: _Reading | None = None
    rank = -1
    for raw in lines:
        line = _COLOUR.sub("", raw)[:LONGEST_LINE].rstrip()
        if found := _PROCESS.match(line):
            if reading is not None:
                yield reading.dump()
            reading, rank = _Reading(int(found[1]), found[2], rank), -1
            continue
        if not (reading is not None and reading.see(line)) and (named := rank_in.search(line[:200])):
            rank = int(named[1])
    if reading is not None:
        yield reading.dump()


def _whole(frame: Frame, version: str, scripts: Iterable[str]) -> Frame:
    """The frame with a path by which it is known whose file it is."""
    path = frame.path
    if path.startswith(("/", "<")) or path in scripts:
        return frame
    if ".so" in path:
        return replace(frame, path=f".../{path}")
    first = path.partition("/")[0]
    if first.removesuffix(".py") in _PACKAGES:
        return replace(frame, path=f".../site-packages/{path}")
    if first.removesuffix(".py") in sys.stdlib_module_names:
        return replace(frame, path=f".../lib/python{version}/{path}")
    return frame
