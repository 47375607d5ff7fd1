"""Facts that are derived from a recording: each kind once, however many checks and tables ask for it."""

from __future__ import annotations

from typing import Protocol, Self, TypeVar

from distdoctor.recording.recording import Recording


class Derived(Protocol):
    """A kind of fact."""

    @classmethod
    def of(cls, recording: Recording) -> Self: ...


Fact = TypeVar("Fact", bound=Derived)


def derived(kind: type[Fact], recording: Recording) -> Fact:
    """`kind.of(recording)`, worked out when it is first asked for.

    NotSeen: this recording cannot tell.
    """
    if kind not in recording.derived:
        recording.derived[kind] = kind.of(recording)
    found: Fact = recording.derived[kind]
    return found
