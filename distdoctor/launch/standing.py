"""What holds ranks up while the job runs, for how long each of it has stood, and what became of it.

A finding stands from the poll that brought it until one of its ranks gives a sign of life. What stood and was told is then taken
back: the job went on, so it did not hang.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from distdoctor.diagnosis.finding import CERTAIN, ERROR, NOTE, Finding, Stalls

FIRST_UPDATE_SECONDS = 30.0  # after the finding, then after twice as long each time
Key = tuple[str, tuple[int, ...]]


@dataclass
class Standing:
    """One finding that ranks wait because of. `since` is when its ranks gave the last sign of life, monotonic seconds."""

    finding: Finding
    since: float
    with_stacks: bool
    next_update: float
    polls: int = 1  # how many polls in a row have brought it

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.since


@dataclass
class StandingFindings:
    """All that stands, by code and ranks. `withdrawn`: what was only a wait, with the seconds after which its ranks moved.

    `waits`: codes that say no more than that somebody waits. What else is certain stays true when the ranks go on. `symptoms`:
    codes of what always has another cause. `lapsed`: what a later look did not bring any more, before its ranks gave a sign of
    life.
    """

    waits: frozenset[str] = frozenset()
    symptoms: frozenset[str] = frozenset()
    by_key: dict[Key, Standing] = field(default_factory=dict)
    lapsed: dict[Key, Standing] = field(default_factory=dict)
    withdrawn: list[tuple[Finding, float]] = field(default_factory=list)
    last_moved: dict[int, float] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)

    def moved(self, ranks: Iterable[int]) -> list[tuple[Finding, float]]:
        """Note signs of life. What is thereby refuted."""
        now = time.monotonic()
        moved = set(ranks)
        self.last_moved.update(dict.fromkeys(moved, now))
        gone: list[tuple[Finding, float]] = []
        for known in (self.by_key, self.lapsed) if moved else ():
            over = [key for key, one in known.items() if moved & set(one.finding.ranks) or not one.finding.ranks]
            gone += [(one.finding, now - one.since) for one in map(known.pop, over)]
        for one in self.by_key.values():
            one.polls = 0 if moved else one.polls
        refuted = [(finding, seconds) for finding, seconds in gone if self._is_refuted(finding)]
        self.withdrawn += refuted
        return refuted

    def _is_refuted(self, finding: Finding) -> bool:
        """Whether a sign of life shows that what was said is not so."""
        guessed = finding.confidence is not CERTAIN or finding.code in self.waits
        return finding.severity != NOTE and finding.stalls is Stalls.MAYBE and guessed

    def polled(self, findings: Iterable[Finding], *, with_stacks: bool) -> None:
        """Note what a poll brought. What a poll of the same kind does not bring any more stands no longer; whether it was only a
        wait, the next sign of life tells."""
        now = time.monotonic()
        brought = {_key(finding): finding for finding in findings if finding.stalls}
        for key in [k for k, one in self.by_key.items() if one.with_stacks == with_stacks and k not in brought]:
            self.lapsed[key] = self.by_key.pop(key)
        for key, finding in brought.items():
            self.lapsed.pop(key, None)
            known = self.by_key.get(key)
            if known is None:
                since = max((self.last_moved.get(rank, self.began) for rank in finding.ranks), default=now)
                self.by_key[key] = Standing(finding, since, with_stacks, now + FIRST_UPDATE_SECONDS)
            else:
                known.finding, known.polls = finding, known.polls + 1

    def proven(self) -> list[Finding]:
        """The errors that two polls in a row have brought, and whose ranks cannot go on."""
        return [
            one.finding
            for one in self.by_key.values()
            if one.polls > 1 and one.finding.stalls is Stalls.FOREVER and one.finding.severity == ERROR
        ]

    def to_share(self) -> list[Finding]:
        """What other hosts are to say as well: what may be an end for good only when two polls in a row have brought it, for they
        count one word of ours as often as they read it."""
        standing = self.by_key.values()
        return [one.finding for one in standing if one.polls > 1 or one.finding.stalls is not Stalls.FOREVER]

    def explains(self, finding: Finding) -> bool:
        """Whether this is a symptom, and the reason why its ranks hold the others up stands already."""
        reasons = [one.finding for one in self.by_key.values() if one.finding.code not in self.symptoms]
        return finding.code in self.symptoms and any({*finding.ranks} <= _concerned(reason) for reason in reasons)

    def standing_for(self, seconds: float) -> list[Finding]:
        """What has held ranks up for so long."""
        return [one.finding for one in self.by_key.values() if one.seconds >= seconds]

    def updates(self) -> Iterator[tuple[Finding, float]]:
        """What stands and was last spoken of long ago, with the seconds for which its ranks have not moved. A symptom is not
        spoken of again once its reason stands."""
        now = time.monotonic()
        graver = any(one.finding.severity == ERROR for one in self.by_key.values())
        for one in self.by_key.values():
            if self.explains(one.finding):
                continue
            if now >= one.next_update and (one.finding.severity == ERROR or not graver):
                one.next_update = now + (now - one.since)
                yield one.finding, one.seconds

    def not_taken_back(self) -> tuple[Finding, ...]:
        """What stands, and what has lapsed."""
        return tuple(one.finding for one in (*self.by_key.values(), *self.lapsed.values()))

    def open(self) -> tuple[Finding, ...]:
        """What stands at this moment."""
        return tuple(one.finding for one in self.by_key.values())


def _concerned(reason: Finding) -> set[int]:
    """The ranks that a finding names, and of a standstill also those that it shows: they stand because of it."""
    shown = reason.places if reason.severity == ERROR and reason.stalls else ()
    return {*reason.ranks, *reason.delays, *(rank for place in shown for rank in place.ranks)}


def _key(finding: Finding) -> Key:
    return finding.code, finding.ranks
