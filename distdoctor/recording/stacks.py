"""What the processes of a running job were doing when somebody looked at them from outside: stacks and what the kernel says.

Times are seconds. Nothing here needs the help of the rank: it is there for a job that was started without distdoctor as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from distdoctor.recording.source_line import SourceLine

STOPPED, TRACED, UNINTERRUPTIBLE, ZOMBIE = "T", "t", "D", "Z"  # letters of /proc/PID/stat
UNTOLD = "?"  # in their place: a copied stack does not say


@dataclass(frozen=True)
class Frame:
    """One Python frame. `arguments` are the named arguments of torch's own functions, as py-spy prints them."""

    function: str
    path: str
    line: int
    arguments: Mapping[str, str] = field(default_factory=dict)

    @property
    def site(self) -> SourceLine:
        return SourceLine(self.path, self.line, self.function)

    @property
    def is_users(self) -> bool:
        """Whether the frame runs the user's own source: neither an installed package nor the standard library."""
        return is_users_path(self.path)

    @property
    def is_native(self) -> bool:
        """Whether the frame is C or C++ (`--native`)."""
        return ".so" in self.path or self.path.endswith(_NATIVE) or not (self.path or self.line)

    @property
    def is_machinery(self) -> bool:
        """Whether the frame is of the C library: how threads start and wait, the same in all of them."""
        return not self.path or any(part in self.path for part in _MACHINERY)


@dataclass(frozen=True)
class ThreadStack:
    """One Python thread. `frames` are innermost first. `os_id` equals the pid for the main thread."""

    os_id: int
    frames: tuple[Frame, ...]
    name: str = ""
    holds_gil: bool = False

    @property
    def in_python(self) -> ThreadStack:
        """The same stack without its C and C++ frames."""
        return ThreadStack(self.os_id, tuple(f for f in self.frames if not f.is_native), self.name, self.holds_gil)

    @cached_property
    def user_frame(self) -> Frame | None:
        """The innermost frame of the user's own source."""
        return next((frame for frame in self.frames if frame.is_users), None)

    def inside(self, path_end: str, *functions: str) -> Frame | None:
        """The innermost frame of a file whose path ends so (of one of `functions`, when given)."""
        return next(
            (f for f in self.frames if f.path.endswith(path_end) and (not functions or f.function in functions)), None
        )


@dataclass(frozen=True)
class Link:
    """A TCP connection that is dead: `unacknowledged` bytes were sent again `resent` times in a row.

    `peer` is the rank at the other end, -1 where that is no rank of this host; `address` is the other end's, `host:port`.
    """

    peer: int
    address: str
    unacknowledged: int
    resent: int


@dataclass(frozen=True)
class FileWait:
    """A file that the kernel holds a main thread for: in open(), read(), flock() or fcntl().

    `kind` is FIFO (a pipe as well), socket, terminal, device or file. `holder` is the process that has the lock, 0 where that
    is not known, and `holder_command` what it runs.
    """

    call: str
    path: str
    kind: str
    holder: int = 0
    holder_command: str = ""


BUSY_SHARE = 0.5  # of a core: below it a process that is said to compute is waiting


@dataclass(frozen=True)
class ProcessStacks:
    """One process, as seen in two or more samples. Of a copied stack `state` is `R` or `S`, as py-spy saw the main thread, or
    `?`, and what else only the kernel knows is not known.

    `threads` are of the last sample that worked, `cpp_threads` those that run no Python (`--native` with pystack).
    `moved`: some sample of the main thread differs from another, or the kernel
    let it run for long. `cpu_share` is the part of the observed time that all its threads computed, 1.0 for one core;
    `ready_share` the part in which one thread computed or waited for a core, which others may have kept.
    `still_seconds` is how long ago the main thread last ran, None when the kernel does not tell; `age_seconds` how long ago the
    process was started. `bytes_moved` counts what it read and wrote meanwhile. `trouble` says why there are no stacks, `way_in`
    the setting that would give them. `links` are its dead connections, `waits_for` is the file that its main
    thread waits for.
    """

    pid: int
    command: str = ""
    state: str = "S"
    threads: tuple[ThreadStack, ...] = ()
    cpp_threads: tuple[ThreadStack, ...] = ()
    moved: bool = False
    cpu_share: float = 0.0
    ready_share: float = 0.0
    still_seconds: float | None = None
    age_seconds: float = 0.0
    bytes_moved: int = 0
    wchan: str = ""
    syscall: int = -1
    tracer: int = 0
    frozen: bool = False
    worker: int = -1
    is_python: bool = True
    held_gil: bool = False  # the main thread held the GIL in every sample
    gil_thread: ThreadStack | None = None  # another thread that held the GIL in every sample, at one and the same line
    # The innermost call of the user's that went on through all samples, with the line that it was at in the last one.
    lasting: Frame | None = None
    trouble: str = ""
    way_in: str = ""
    links: tuple[Link, ...] = ()
    waits_for: FileWait | None = None
    printed_by: str = ""  # what stands before its stack in a log that does not say which rank it is
    copied: bool = False  # somebody else looked, and we have what was printed

    @property
    def main(self) -> ThreadStack | None:
        """The main thread's stack, None when it could not be read."""
        return next((thread for thread in self.threads if thread.os_id == self.pid), next(iter(self.threads), None))

    @property
    def keeps_gil(self) -> bool:
        """Whether the main thread is in one call that does not release the GIL. A loop in Python holds it in most samples, too,
        at changing lines: other threads get it every few milliseconds."""
        return self.held_gil and not self.moved

    @property
    def is_busy(self) -> bool:
        """Whether it computes, or would if it had a core, rather than waits."""
        return max(self.cpu_share, self.ready_share) >= BUSY_SHARE

    @property
    def is_stopped(self) -> bool:
        """Whether a signal, a debugger or the freezer holds it."""
        return self.state in (STOPPED, TRACED) or self.frozen


@dataclass(frozen=True)
class RankStacks:
    """One rank: its process (None when it has none on this host), the workers of its DataLoaders and its other children."""

    rank: int
    process: ProcessStacks | None
    workers: tuple[ProcessStacks, ...] = ()
    children: tuple[ProcessStacks, ...] = ()


@dataclass(frozen=True)
class Stacks:
    """What a look at a running job brought. Falsy when nobody looked.

    `elsewhere` are ranks that no process of this host can be (other nodes). `observed_seconds` lie between the first and the
    last sample. A rank that has been still for `patience_seconds` is taken to be stuck. `launcher` is the agent, when found.

    `copies`: how often every rank was looked at, where these are copies that somebody made, of which nobody knows when; 0: we
    looked ourselves. `unranked` are the processes among them of which nothing says which rank they are. `later`: the last line
    about training in the job's log, where it was printed after the last copy.
    """

    ranks: Mapping[int, RankStacks] = field(default_factory=dict)
    elsewhere: tuple[int, ...] = ()
    launcher: ProcessStacks | None = None
    observed_seconds: float = 0.0
    patience_seconds: float = 10.0
    copies: int = 0
    unranked: tuple[ProcessStacks, ...] = ()
    later: str = ""

    def __bool__(self) -> bool:
        return bool(self.ranks) or self.launcher is not None

    @property
    def absent(self) -> tuple[int, ...]:
        """Ranks that should be on this host and have no process here."""
        return tuple(rank for rank, seen in sorted(self.ranks.items()) if seen.process is None)

    def everybody(self) -> Iterator[ProcessStacks]:
        """The processes of all ranks, those of their loaders, and those of which nobody knows whose they are."""
        for seen in self.ranks.values():
            yield from (one for one in (seen.process, *seen.workers) if one is not None)
        yield from self.unranked

    def processes(self) -> Iterator[tuple[int, ProcessStacks]]:
        """(rank, process) of every rank that has one."""
        for rank, seen in sorted(self.ranks.items()):
            if seen.process is not None:
                yield rank, seen.process


_MACHINERY = ("/libc.so", "/libstdc++.so", "/libpthread", "/ld-linux")
_NATIVE = (".c", ".cc", ".cpp", ".cxx", ".h", ".hpp", ".cu", ".cuh", ".S")
# Reference workloads count as the user's, although they are installed like a library.
_WORKLOADS = ("/distdoctor/workloads/", "/distdoctor_strategies/", "/distdoctor_drills/")
_TORCH = (
    "/torch/distributed/",
    "/torch/nn/",
    "/torch/autograd/",
    "/torch/utils/",
    "/torch/optim/",
)
_INSTALLED = (
    "/site-packages/",
    "/dist-packages/",
    "/lib-dynload/",
    "/distdoctor/probe/",
    "/distdoctor/launch/",
    "/distdoctor/pytest_plugin/",
    "/distdoctor/testing/faults.py",
)


def is_users_path(path: str) -> bool:
    """Whether a source file is the user's own, told by its path alone: it may be a path of another machine."""
    if any(part in path for part in _WORKLOADS):
        return True
    if ".so" in path or path.endswith(_NATIVE) or not path:
        return False
    if path.startswith("<"):
        return path == "<stdin>"  # <string> is how multiprocessing starts a child; <frozen ...> is Python's own
    if any(part in path for part in (*_INSTALLED, *_TORCH)) or path.startswith("/usr/lib/python"):
        return False
    return not _is_standard_library(path)


def _is_standard_library(path: str) -> bool:
    """`.../lib/python3.11/threading.py`, also inside a zip."""
    _, found, after = path.rpartition("/lib/python3")
    return bool(found) and "/" in after and not after.partition("/")[2].startswith("site-packages")
