"""Tracebacks that Python's faulthandler prints: of a crash, after a timeout, or when a signal asks for them.

A dump does not say whose it is: neither a pid nor a rank. The threads of one follow each other with an empty line between, newest
first, so the main one is the last. It stands in a log, between lines of other ranks, or in a file of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from distdoctor.recording.py_spy_dump import MOST_FRAMES, MOST_THREADS, StackDump, own_name
from distdoctor.recording.source_line import PASSED_OVER, SourceLine
from distdoctor.recording.stacks import Frame, ThreadStack, is_users_path

MOST_DUMPS = 10_000  # of one text
SIGNALS = {  # as faulthandler names them -> their number
    "Segmentation fault": 11, "Bus error": 7, "Illegal instruction": 4, "Floating point exception": 8, "Aborted": 6,
}  # fmt: skip
TELLING = r"[Tt]hread 0x|<no Python frame>"  # beside the words of errors: what a line must hold to be one of a dump
_TIMEOUT = re.compile(r"Timeout \(\d{1,9}:\d\d:\d\d(?:\.\d{1,9})?\)!")
_FATAL = re.compile(r"Fatal Python error: (.{0,200})")
_THREAD = re.compile(r"(Current t|T)hread 0x([0-9a-f]{1,16})(?: \[([^\]]{0,100})\])? \(most recent call first\):")
_FRAME = re.compile(r'File (?:"([^"]{1,1000})"|\?\?\?), line (\d{1,9}|\?\?\?) in (\S{1,200})')
_MODULE = "<module>"


@dataclass
class _Thread:
    number: str
    name: str
    is_current: bool
    frames: list[Frame] = field(default_factory=list)


@dataclass(frozen=True)
class FaultDump:
    """One process. `error` is what it died of, "" where it was only asked. `rank`: who printed it, -1 where that is not told."""

    error: str
    rank: int
    line_number: int
    threads: tuple[_Thread, ...]
    printer: str = ""  # what stands before its lines in a log, where no rank can be told from that

    @property
    def stacks(self) -> StackDump:
        """The same as other dumps are. Its main thread has the number 0, the others have some below it."""
        main = self._main
        threads = [t for t in self.threads if t is main] + [t for t in self.threads if t is not main]
        stacks = tuple(ThreadStack(-at, tuple(t.frames), t.name) for at, t in enumerate(threads))
        # Forked workers have the main thread of whom they were forked from.
        is_worker = any(f.path.endswith("torch/utils/data/_utils/worker.py") for f in main.frames)
        identity = f"{self.printer}{main.number}{' worker' if is_worker else ''}"
        return StackDump(0, stacks, rank=self.rank, identity=identity, printer=self.printer, has_whole_paths=True)

    @property
    def _main(self) -> _Thread:
        began = [t for t in self.threads if t.frames and t.frames[-1].function == _MODULE]
        return (began or list(self.threads))[-1]

    @property
    def crashed(self) -> tuple[SourceLine, str]:
        """Where the thread was that died: the innermost line of the user's, and the function that it had called, "" where that is
        the line's own."""
        current = next((t for t in self.threads if t.is_current), self._main)
        user = next((f for f in current.frames if is_users_path(f.path)), None)
        inner = current.frames[0].function if current.frames and user is not current.frames[0] else ""
        return (user.site if user is not None else SourceLine()), inner


_Who = tuple[int, str]  # a rank, else -1 and what stands before its lines


@dataclass
class _Open:
    """The dump that one process is printing."""

    error: str
    who: _Who
    began: int
    last: int
    threads: list[_Thread] = field(default_factory=list)


def begins_like_faults(lines: Iterable[str]) -> bool:
    """Whether a text begins with such a dump, rather than holding one among other lines."""
    first = next((line for line in lines if line.strip()), "").strip()
    return any(pattern.match(first) for pattern in (_TIMEOUT, _FATAL, _THREAD))


_NOBODY = (-1, "")


def fault_dumps(lines: Iterable[tuple[int, str, int, str]]) -> list[FaultDump]:
    """The dumps in (number, line without prefixes, rank, prefixes) of the lines of a text that tell something."""
    found: list[FaultDump] = []
    open_dumps: dict[_Who, _Open] = {}

    def close(who: _Who) -> None:
        one = open_dumps.pop(who, None)
        if one is not None and any(t.frames for t in one.threads) and len(found) < MOST_DUMPS:
            threads = tuple(t for t in one.threads if t.frames)
            found.append(FaultDump(one.error, one.who[0], one.began, threads, one.who[1]))

    for number, words, rank, printer in lines:
        _see(number, words.strip(), (rank, "" if rank >= 0 else printer), open_dumps, close)
    for who in list(open_dumps):
        close(who)
    return sorted(found, key=lambda one: one.line_number)


def _see(number: int, words: str, who: _Who, open_dumps: dict[_Who, _Open], close: Callable[[_Who], None]) -> None:
    fatal = _FATAL.search(words)
    if fatal is not None or _TIMEOUT.search(words):
        close(who)
        open_dumps[who] = _Open(fatal[1].strip() if fatal else "", who, number, number)
        return
    if header := _THREAD.search(words):
        one = open_dumps.get(who)
        # Between the threads of one dump stands an empty line, which tells nothing and is not among these; where lines say whose
        # they are, those of others may stand there as well.
        apart = one is not None and who == _NOBODY and number - one.last != 2
        if one is None or (one.threads and (apart or _is_known(one, header[2]))):
            close(who)
            one = open_dumps[who] = _Open("", who, number, number)
        if len(one.threads) < MOST_THREADS:
            one.threads.append(_Thread(header[2], header[3] or "", header[1] == "Current t"))
        one.last = number
        return
    one = open_dumps.get(who)
    if one is None or not one.threads:
        return
    if (frame := _FRAME.match(words)) is None:
        if words == "..." or "<no Python frame>" in words:
            one.last = number
        else:
            close(who)
        return
    one.last = number
    path, frames = frame[1] or "???", one.threads[-1].frames
    if len(frames) < MOST_FRAMES and not path.endswith(PASSED_OVER):
        frames.append(Frame(own_name(frame[3]), path, 0 if frame[2] == "???" else int(frame[2])))


def _is_known(one: _Open, number: str) -> bool:
    return any(thread.number == number for thread in one.threads)
