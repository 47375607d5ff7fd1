"""A remedy: one cure, described once, prescribed by findings under its slug."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Remedy:
    """What to change and what to expect.

    `what` is one imperative sentence; `how` is the smallest example that works; `effect` says what to expect and how it was
    computed or measured; `safety` what may change besides (numerics, speed, memory); `source` where that is written.
    """

    slug: str
    what: str
    how: str = ""
    effect: str = ""
    safety: str = "changes no result"
    source: str = ""
