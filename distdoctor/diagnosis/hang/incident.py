"""An incident: one thing that went wrong with the job's communication, as facts. What to call it is for the checks to say."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from distdoctor.diagnosis.facts.collectives import GroupCalls
from distdoctor.diagnosis.finding import CERTAIN, LIKELY, Confidence, Stalls
from distdoctor.diagnosis.hang.alignment import CallDivergence
from distdoctor.diagnosis.hang.ending import Ending
from distdoctor.diagnosis.hang.kinds import IncidentKind
from distdoctor.diagnosis.hang.program import SKIPPED, CallEdit
from distdoctor.diagnosis.hang.silence import IdleTime
from distdoctor.diagnosis.hang.uneven import Uneven
from distdoctor.diagnosis.hang.wait_for import Wait
from distdoctor.diagnosis.source.decision import Decision
from distdoctor.diagnosis.source.rank_guard import ENCLOSES, Guard
from distdoctor.recording.recording import Call, SourceLine
from distdoctor.recording.trace.layout import POINT_TO_POINT, Op


@dataclass(frozen=True)
class Incident:
    """One thing that went wrong, with everything that a check needs to recognise it and to put it into words.

    `ranks`: the odd ones out, the most suspect first. `odd` is what they did instead, `usual` what the others did; `guarded`
    is the one of the two that `guard` decides about. `at_ns` is wall time. What does not apply is left out.
    """

    kind: IncidentKind
    ranks: tuple[int, ...]
    at_ns: int
    confidence: Confidence = CERTAIN
    divergence: CallDivergence | None = None
    departure: CallEdit | None = None
    odd: Call | None = None
    usual: Call | None = None
    called: tuple[str, str] | None = (
        None  # what the source calls there, odd and usual, where more is known than the lines
    )
    in_place: bool = False  # the odd call is the usual one with other arguments, or stands in its place
    branch: Guard | None = None  # the condition of which the two calls are the two branches
    choice: Guard | None = None  # the expression on one line that gives these ranks another value
    guard: Guard | None = None
    guarded: Call | None = None
    guard_at: SourceLine = field(default_factory=SourceLine)
    ending: Ending | None = None
    also: tuple[Ending, ...] = ()
    uneven: Uneven | None = None  # the uneven pass because of which the ranks parted
    group: GroupCalls | None = None
    waiting: tuple[Wait, ...] = ()
    cycle: tuple[Wait, ...] = ()
    rings: tuple[tuple[Wait, ...], ...] = ()  # the cycle, and those of other ranks in the same lines
    silence: IdleTime | None = None
    pair: tuple[Call, Call] | None = None
    left_out: Call | None = None  # of an UNSENT one: the last end of a message by the statement that was left out
    crossed: tuple[Call, Call] | None = None  # two calls of one rank on the group, of two threads at the same time
    lost_sends: int = 0  # of an UNRECEIVED one: how many, `odd` the first of them
    is_tie: bool = False
    sides: Confidence = CERTAIN  # how sure `ranks` are the odd ones: of two equal sides only habits and words tell
    is_closed: bool = False  # ranks wait for each other in calls that are no collectives
    stalls: Stalls = Stalls.NO
    hint: str = ""  # the name in the user's source that tells whose fault it is: without it nobody could say
    decision: Decision | None = None  # what in the source most likely let the ranks part
    callers: tuple[SourceLine, ...] = ()  # the lines that led to the odd call or to the usual one, and not to both
    key: str = ""  # what findings name that explain this incident (`Finding.explains`)

    @property
    def differs(self) -> str:
        """What the calls of a group differ in (`diagnosis.hang.alignment`); "" when no group parted."""
        return self.divergence.differs if self.divergence is not None else ""

    @property
    def how(self) -> str:
        """What the odd ranks did (`diagnosis.hang.program`): skipped, added, swapped, replaced; "" when that is not known."""
        return self.departure.how if self.departure is not None else ""

    @property
    def is_under_rank(self) -> bool:
        """Whether a call stands inside a condition on the rank that only one side met."""
        return self.guard is not None and self.guarded is not None and self.guard.on_rank and self.guard.how == ENCLOSES

    @property
    def replaces(self) -> bool:
        """Whether the odd ranks issued other calls where the others issued the usual one, and skipped nothing."""
        several = self.divergence is not None and len(self.divergence.variants) > 2
        return self.in_place or (several and self.how != SKIPPED)

    @property
    def in_pairs(self) -> tuple[Wait, ...]:
        """The sends and receives of a ring."""
        return tuple(wait for wait in self.cycle if wait.call.op in POINT_TO_POINT and not wait.is_posted)

    @property
    def is_one_way(self) -> bool:
        """Whether everybody in a ring sends, or everybody receives."""
        pairs = self.in_pairs
        return bool(pairs) and len(pairs) == len(self.cycle) and len({wait.call.op is Op.SEND for wait in pairs}) == 1

    @property
    def undecided(self) -> bool:
        """Whether all sides are named because nothing tells which one is odd: all do the same where a line waits for itself."""
        is_one_line = self.is_one_way and len({wait.call.site for wait in self.cycle}) == 1
        return self.is_tie or self.pair is not None or (bool(self.cycle) and not is_one_line)

    @property
    def likely(self) -> Confidence:
        """How sure a verdict is that needed a name in the user's source."""
        return LIKELY if self.confidence is CERTAIN else self.confidence

    @property
    def rank_word(self) -> str:
        """The name in the condition that is taken for the rank."""
        return self.guard.word if self.guard is not None and self.guard.on_rank else ""

    def decided_by(self, guard: Guard | None) -> Incident:
        """The incident with this condition, or none, as the one that decided it."""
        return replace(self, guard=guard, guarded=None, guard_at=SourceLine())
