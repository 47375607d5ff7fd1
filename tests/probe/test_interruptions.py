"""What a handler of the host's raises while the probe is at work reaches the host; the probe goes on."""

from __future__ import annotations

import functools
import signal
import tempfile
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from distdoctor.probe.context import Rank
from distdoctor.probe.stream import ProbeStream
from distdoctor.probe.writer import TraceWriter
from distdoctor.recording.trace.probe_settings import ProbeSettings


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
