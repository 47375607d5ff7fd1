"""What a handler of the host's raises while the probe is at work reaches the host; the probe goes on."""

from __future__ import annotations

import ast
import functools
import gc
import os
import re
import signal
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from distdoctor.probe import interruptions
from distdoctor.probe.collectives.callers import Codes
from distdoctor.probe.collectives.handles import Handles
from distdoctor.probe.context import Rank
from distdoctor.probe.interruptions import suppressed
from distdoctor.probe.progress import garbage
from distdoctor.probe.samples.dataset_content import content_of
from distdoctor.probe.stream import ProbeStream
from distdoctor.probe.writer import TraceWriter
from distdoctor.recording.trace.layout import CallFlag
from distdoctor.recording.trace.probe_settings import ProbeSettings
from distdoctor.recording.trace.run_folder import read_run

PROBE = Path(__file__).parents[2] / "distdoctor" / "probe"


class Preempted(Exception):
    """What a program's own handler raises."""


def raising(number: int, frame: FrameType | None) -> None:
    raise Preempted


class Handler:
    def raising(self, number: int, frame: FrameType | None) -> None:
        raise Preempted

    def __call__(self, number: int, frame: FrameType | None) -> None:
        raise Preempted


def announced(words: str, number: int, frame: FrameType | None) -> None:
    raise Preempted(words)


@pytest.fixture(params=["function", "method", "object", "part"])
def handled(request: pytest.FixtureRequest) -> Iterator[None]:
    handlers: dict[str, Callable[[int, FrameType | None], Any]] = {
        "function": raising,
        "method": Handler().raising,
        "object": Handler(),
        "part": functools.partial(announced, "the machine is needed"),
    }
    before = signal.signal(signal.SIGUSR2, handlers[request.param])
    yield
    signal.signal(signal.SIGUSR2, before)


@pytest.fixture
def rank() -> Iterator[Rank]:
    with tempfile.TemporaryDirectory() as folder:
        rank = Rank(folder, ProbeSettings())
        rank.trace = TraceWriter(folder, 0, 1, 0, 0)
        yield rank


def struck() -> None:
    signal.raise_signal(signal.SIGUSR2)


def broken() -> None:
    raise ZeroDivisionError


@pytest.mark.usefixtures("handled")
def test_what_a_handler_raises_inside_of_a_callback_goes_on_to_the_host(rank: Rank) -> None:
    with pytest.raises(Preempted):
        rank.guarded(struck)()

    assert not rank.silent


@pytest.mark.usefixtures("handled")
def test_what_a_handler_raises_inside_of_a_stream_goes_on_to_the_host(rank: Rank) -> None:
    assert rank.trace is not None
    stream = ProbeStream(rank, rank.trace, deep=False)

    with pytest.raises(Preempted):
        stream.guarded(struck)()

    assert not stream.off


@pytest.mark.usefixtures("handled")
def test_an_error_of_our_own_does_not(rank: Rank) -> None:
    rank.guarded(broken)()

    assert rank.silent


@pytest.mark.usefixtures("handled")
def test_neither_what_it_raises_while_an_error_of_our_own_is_looked_at(
    rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interruptions, "_code_of", functools.partial(struck_once, interruptions._code_of, []))

    with pytest.raises(Preempted):
        rank.guarded(broken)()


def struck_once(code_of: Callable[[Any], Any], before: list[Any], handler: Any) -> Any:
    if not before:
        before.append(handler)
        struck()
    return code_of(handler)


def without_python(*calls: Callable[[], Any]) -> None:
    """Make these calls of C one after the other: the interpreter looks after no signal between them."""
    deque(map(functools.partial.__call__, map(functools.partial, calls)), maxlen=0)


class Handle:
    """What an asynchronous collective gives back."""


@pytest.mark.usefixtures("handled")
def test_what_a_handler_raises_when_something_dies_reaches_the_host(rank: Rank) -> None:
    trace = rank.trace
    assert trace is not None
    handles, codes = Handles(rank, trace), Codes(trace)
    call = trace.calls.write(number=1)
    alive = {"handle": Handle(), "code": compile("1", "made_at_run_time.py", "eval")}
    handles.follow(alive["handle"], call, "allreduce", ())
    identity = id(alive["code"])
    codes.learn(alive["code"])
    before = signal.signal(signal.SIGALRM, signal.getsignal(signal.SIGUSR2))

    try:
        with pytest.raises(Preempted):
            without_python(
                functools.partial(signal.setitimer, signal.ITIMER_REAL, 0.001),
                functools.partial(sum, range(10_000_000)),  # until it has arrived
                alive.clear,
            )
    finally:
        signal.signal(signal.SIGALRM, before)

    codes.forget()
    assert identity not in codes.known
    handles.end()
    assert read_run(Path(rank.folder)).ranks[0].calls["flags"].tolist() == [CallFlag.DROPPED]


def test_what_a_handler_raises_after_a_collection_of_garbage_reaches_the_host(rank: Rank) -> None:
    heap = [[number] for number in range(300_000)]
    before = signal.signal(signal.SIGALRM, raising)
    struck, others = 0, gc.callbacks[:]
    gc.callbacks.clear()  # hypothesis has a function of Python's there
    garbage.install(rank)
    try:
        for _ in range(5):
            try:
                without_python(functools.partial(signal.setitimer, signal.ITIMER_REAL, 0.001), gc.collect)
                time.sleep(1)
            except Preempted:
                struck += 1
    finally:
        signal.signal(signal.SIGALRM, before)
        gc.callbacks[:] = others

    assert struck == 5
    assert heap


class Timed(TimeoutError):
    """What a handler of SIGALRM raises: a kind of OSError, as what a missing file raises."""


def too_late(number: int, frame: FrameType | None) -> None:
    raise Timed


class Struck:
    """A data set that a signal strikes while it is asked for its length."""

    def __len__(self) -> int:
        signal.raise_signal(signal.SIGUSR2)
        return 3


@pytest.fixture
def timed() -> Iterator[None]:
    before = signal.signal(signal.SIGUSR2, too_late)
    yield
    signal.signal(signal.SIGUSR2, before)


@pytest.mark.usefixtures("timed")
def test_what_a_handler_raises_is_no_error_that_somebody_expects() -> None:
    with pytest.raises(Timed):
        content_of(Struck())
    with pytest.raises(Timed), suppressed(OSError):
        struck()


@pytest.mark.usefixtures("timed")
def test_an_error_that_is_expected_stays_where_it_is() -> None:
    went_on = []
    with suppressed(OSError):
        went_on.append(os.stat("/nowhere/at/all"))
    assert went_on == []
    with suppressed(OSError):
        raise Timed  # by the very function: no handler
    with pytest.raises(ValueError, match="another"), suppressed(OSError):
        raise ValueError("another")


# The way into a process, which imports nothing of ours before it has to; and what tells the two apart.
OUTSIDE = {"seam.py", "sitecustomize.py", "interruptions.py"}
# What is expected of calls into which no handler gets, or goes on as another exception.
HARMLESS = {"BaseException", "StopIteration", "FileExistsError", "KeyError", "ValueError: a thread of C++"}


def kept_errors() -> Iterator[tuple[str, ast.ExceptHandler]]:
    """(place, handler) of every `except` of the probe that may keep an error to itself."""
    for path in sorted(PROBE.rglob("*.py")):
        lines = path.read_text().splitlines()
        for node in ast.walk(ast.parse("\n".join(lines))) if path.name not in OUTSIDE else ():
            if isinstance(node, ast.ExceptHandler) and node.type is not None:
                _, _, comment = lines[node.lineno - 1].partition("  # ")
                words = f"{ast.unparse(node.type)}: {comment}".rstrip(": ")
                if words not in HARMLESS:
                    yield f"{path.name}:{node.lineno} {words}", node


def test_whoever_keeps_an_error_to_itself_hands_on_those_of_handlers() -> None:
    careless = [
        place
        for place, node in kept_errors()
        if not re.match(r"hand_on\(|(self|rank)\.trouble\(", ast.unparse(node.body[0]))
    ]

    assert careless == []
    assert len(list(kept_errors())) > 40
