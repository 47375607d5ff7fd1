"""A finding: one illness, with the ranks, the place, the numbers behind it and what to do. A value, never a log line."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum, StrEnum

from distdoctor.diagnosis.source.edits import Edit, Patch
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import SourceLine


class Severity(IntEnum):
    """How bad it is, when it is true."""

    NOTE = 1
    WARNING = 2
    ERROR = 3

    @property
    def word(self) -> str:
        return self.name.lower()


class Confidence(StrEnum):
    """How sure we are. CERTAIN is kept for what the recording proves."""

    CERTAIN = "certain"
    LIKELY = "likely"
    POSSIBLE = "possible"


class Stalls(IntEnum):
    """Whether ranks wait because of it. MAYBE: for long, and they may go on by themselves; FOREVER: for what cannot come."""

    NO = 0
    MAYBE = 1
    FOREVER = 2


NOTE, WARNING, ERROR = Severity.NOTE, Severity.WARNING, Severity.ERROR
CERTAIN, LIKELY, POSSIBLE = Confidence.CERTAIN, Confidence.LIKELY, Confidence.POSSIBLE


@dataclass(frozen=True)
class Place:
    """A line that matters, which ranks are there and what they do there (`waits in all_reduce #128`)."""

    site: SourceLine
    ranks: tuple[int, ...] = ()
    role: str = ""


@dataclass(frozen=True)
class Prescription:
    """A remedy as one finding prescribes it: the slug of the remedy, and the change with this job's own names and lines.

    `change` is in words, or lines to write; `effect` is in numbers, with how they were computed. `edits` are what a check would
    change in the source that ran; whoever examines makes the `patch` of them, or drops them where they cannot be trusted.
    """

    slug: str
    change: str = ""
    effect: str = ""
    verified: bool = False
    edits: tuple[Edit, ...] = ()
    patch: Patch | None = None


@dataclass(frozen=True)
class Finding:
    """What a check found.

    `ranks` are the odd ones out, most suspect first. `place` is the line to change or to look at first; `places` is every line
    that matters, as the rows of the explanation. `evidence` holds the numbers by name. `at_ns` is when it happened on the
    wall clock (0: unknown), to put the cause before its consequences. `code`, `slug` and `severity` are filled in from the
    check when left out, `area` (hang, replicas, data, ...) always. `stalls`: whether ranks wait because of it; None: as its check
    says.

    `delays`: ranks that are late because of it, and not by their own doing.

    `undecided`: that `ranks` disagree is as sure as `confidence` says, and nothing on record tells which of them is the odd one.

    `explains`: the keys of the facts (of an incident, of a divergence of replicas) that it is about. Of all findings that explain
    one fact only those of the most specific check are told; `specificity` is how specific this one is, None: as its check says.
    """

    title: str
    ranks: tuple[int, ...] = ()
    confidence: Confidence = CERTAIN
    place: SourceLine = SourceLine()  # noqa: RUF009 - a frozen value
    places: tuple[Place, ...] = ()
    evidence: dict[str, object] = field(default_factory=dict)
    why: str = ""
    prescriptions: tuple[Prescription, ...] = ()
    at_ns: int = 0
    severity: Severity | None = None
    code: str = ""
    slug: str = ""
    area: str = ""
    stalls: Stalls | None = None
    explains: tuple[str, ...] = ()
    specificity: int | None = None
    undecided: bool = False
    delays: tuple[int, ...] = ()

    @property
    def lines(self) -> frozenset[tuple[str, int]]:
        """(path, line) of all lines that it shows: a comment on any of them may accept it, whichever comes first."""
        return frozenset(
            (site.path, site.line) for site in (self.place, *(place.site for place in self.places)) if site
        )

    @property
    def ranks_named(self) -> str:
        """`rank 3`, `ranks 0-2`."""
        return named(self.ranks)

    @property
    def sureness(self) -> str:
        """`certain`; of a disagreement whose odd side nothing tells `certain, but not which side is wrong`."""
        return f"{self.confidence}, but not which side is wrong" if self.undecided else str(self.confidence)
