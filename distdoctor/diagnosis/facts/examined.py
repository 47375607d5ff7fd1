"""What the other checks said: checks that ask for it are asked last."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Self

from distdoctor.diagnosis.check import Check, NotApplicable
from distdoctor.diagnosis.finding import Finding
from distdoctor.recording.recording import Recording


@dataclass(frozen=True)
class Examined:
    """The fact: `installed` and `looked` are codes and slugs in lower case, of all checks and of those that could look.
    `whole`: the job ended well and every rank was seen to its end."""

    streams: ClassVar[frozenset[str]] = frozenset()
    installed: frozenset[str]
    looked: frozenset[str]
    findings: tuple[Finding, ...]
    whole: bool

    @classmethod
    def of(cls, recording: Recording) -> Self:
        """NotApplicable: nobody asked a check before. The examination itself knows, and leaves it with what is derived."""
        raise NotApplicable("no other check was asked")


def names_of(checks: Iterable[Check]) -> frozenset[str]:
    """Codes and slugs, those that are retired too, in lower case."""
    return frozenset(
        name.lower()
        for one in checks
        for name in (one.code, one.slug, *(w for old in one.formerly for w in old.split()))
    )
