"""A check: a function whose parameters name the facts it needs, and which yields findings that it can point at."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from types import UnionType
from typing import Any, Protocol, Self

from distdoctor.diagnosis.derived import derived
from distdoctor.diagnosis.finding import CERTAIN, Confidence, Finding, Severity, Stalls
from distdoctor.diagnosis.handbook import page_of
from distdoctor.errors import PluginTrouble
from distdoctor.recording.recording import Job, Recording

Examine = Callable[..., Iterable[Finding]]


class NotSeen(Exception):
    """A fact cannot be had from this recording; the message is the reason that the user reads under *not examined*."""


class NotApplicable(NotSeen):
    """The question does not arise for this kind of recording: stacks of a job that is over, a log where traces are at hand."""


class Fact(Protocol):
    """A view of a recording that a check can ask for by naming it as the type of a parameter.

    `streams` are the streams that have to be recorded for it. `of` raises NotSeen when this recording cannot tell.
    """

    streams: frozenset[str]

    @classmethod
    def of(cls, recording: Recording) -> Self: ...


@dataclass(frozen=True)
class Check:
    """One illness and how to recognise it. Made by the decorator `check`."""

    code: str
    slug: str
    severity: Severity
    examine: Examine
    facts: tuple[type[Any], ...]
    module: str
    live: bool = True  # may be asked while the job runs; its findings are then true at once
    family: str = ""  # of one family, notes on ranks that a graver finding names are left out
    stands_alone: bool = False  # proven by the ranks that a finding names: what others did cannot overturn it
    formerly: tuple[str, ...] = ()  # codes and slugs that are retired, of which this check tells a part now
    symptom: bool = False  # what it finds may follow from any other finding on the same rank, and is then told under it
    stalls: Stalls = (
        Stalls.NO
    )  # whether ranks wait because of what it finds; where a finding does not say, if it is certain
    outside: bool = (
        False  # only a look from outside can say more than what it finds in a recording: at stacks, at the network
    )
    specificity: int = 0  # among checks that explain the same fact, the most specific one is heard
    at_most: Confidence = CERTAIN  # how sure its findings can be

    @property
    def handbook(self) -> str:
        """The page of the handbook: the docstring of the check's file."""
        return page_of(self.module)

    @property
    def area(self) -> str:
        """What kind of illness it is, by the folder that its file lies in: hang, replicas, data, memory, speed, environment..."""
        return self.module.rpartition(".")[0].rpartition(".")[2]

    @property
    def headline(self) -> str:
        """The first line of the page without code and slug."""
        return self.handbook.partition("\n")[0].partition(": ")[2]

    @property
    def streams(self) -> frozenset[str]:
        """What has to be recorded for this check. Facts that it can do without (`Verdict | None`) do not count."""
        needed = [fact for fact in self.facts if not isinstance(fact, UnionType)]
        return frozenset().union(*(fact.streams for fact in needed)) if needed else frozenset()

    def _stalls(self, finding: Finding) -> Stalls:
        """Never more than its check declares. A finding that does not say is taken at its word only where it is certain."""
        if finding.stalls is not None:
            return min(self.stalls, finding.stalls)
        return self.stalls if finding.confidence is CERTAIN else min(self.stalls, Stalls.MAYBE)

    @property
    def may_use(self) -> frozenset[str]:
        """The streams of all its facts, of those that it can do without as well."""
        wanted = [one for fact in self.facts for one in getattr(fact, "__args__", (fact,)) if one is not type(None)]
        return frozenset().union(*(one.streams for one in wanted if hasattr(one, "streams"))) if wanted else frozenset()

    def look(self, recording: Recording) -> list[Finding]:
        """The findings in this recording.

        NotSeen: this recording cannot tell.
        """
        arguments = _facts(self.facts, recording)
        return [
            replace(
                finding,
                code=finding.code or self.code,
                slug=finding.slug or self.slug,
                area=self.area,
                severity=finding.severity or self.severity,
                confidence=max(finding.confidence, self.at_most, key=list(Confidence).index),
                stalls=self._stalls(finding),
                specificity=self.specificity if finding.specificity is None else finding.specificity,
            )
            for finding in self.examine(*arguments)
        ]


def _facts(kinds: tuple[type[Any], ...], recording: Recording) -> list[Any]:
    """One for each parameter; None for those that the check can do without (`Verdict | None`) and this recording cannot tell.

    NotSeen: one that it needs is missing, or every one of those that it could do without.
    """
    found: list[Any] = []
    missing: list[NotSeen] = []
    for kind in kinds:
        try:
            found.append(_fact(kind, recording))
        except NotSeen as reason:
            if not isinstance(kind, UnionType):
                raise
            found.append(None)
            missing.append(reason.with_traceback(None))  # which holds this frame, and the recording with it
    if missing and len(missing) == len(kinds):
        raise _nothing_seen(missing)
    return found


def _fact(kind: type[Any], recording: Recording) -> Any:
    if isinstance(kind, UnionType):
        wanted: Any = next(one for one in kind.__args__ if one is not type(None))
        if absent := wanted.streams - recording.streams:
            raise NotSeen(not_recorded(absent))
        return _fact(wanted, recording)
    if kind is Job:
        return recording.job
    return recording if kind is Recording else derived(kind, recording)


def _nothing_seen(missing: list[NotSeen]) -> NotSeen:
    """Why a check looked at nothing at all: that its question does not arise is the reason only where nothing else is."""
    lacking = [reason for reason in missing if not isinstance(reason, NotApplicable)]
    words = "; ".join(dict.fromkeys(str(reason) for reason in lacking or missing))
    return NotSeen(words) if lacking else NotApplicable(words)


def not_recorded(streams: Iterable[str]) -> str:
    """What the user reads where nobody recorded these streams."""
    return f"not recorded: {', '.join(sorted(streams))}"


def check(
    code: str,
    slug: str,
    *,
    severity: Severity,
    live: bool = True,
    family: str = "",
    stands_alone: bool = False,
    formerly: tuple[str, ...] = (),
    symptom: bool = False,
    stalls: Stalls = Stalls.NO,
    outside: bool = False,
    specificity: int = 0,
    at_most: Confidence = CERTAIN,
) -> Callable[[Examine], Check]:
    """Make a function `examine(facts...) -> Iterator[Finding]` a check of the module it stands in.

    A parameter `Verdict | None` is None where the recording cannot tell; a check is not asked where it would be given nothing
    but None.

    Where ranks left no recording, findings are at most "likely", unless the check `stands_alone`. Of the findings that explain
    the same fact (`Finding.explains`), only those of the check with the highest `specificity` are told. `at_most` LIKELY: what
    the check looks at is never a proof, so that nobody can wait for it to be certain (`--stop-on`).
    """

    def make(examine: Examine) -> Check:
        hints = typing.get_type_hints(examine)
        names = list(inspect.signature(examine).parameters)
        unknown = [name for name in names if name not in hints]
        if unknown:
            raise PluginTrouble(
                f"{code} {slug}: parameter {unknown[0]} of {examine.__module__}.{examine.__name__} has no type",
                way_out="Annotate it with the fact it needs, for example `calls: Collectives`.",
            )
        needs = tuple(hints[name] for name in names)
        module = examine.__module__
        return Check(
            code,
            slug,
            severity,
            examine,
            needs,
            module,
            live,
            family,
            stands_alone,
            formerly,
            symptom,
            stalls,
            outside,
            specificity,
            at_most,
        )

    return make
