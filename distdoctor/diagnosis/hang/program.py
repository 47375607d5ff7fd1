"""The program behind a rank's calls: what usually follows what. Tells a skipped call from an additional one."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from distdoctor.diagnosis.facts.timeline import Timeline
from distdoctor.recording.recording import Call
from distdoctor.recording.trace.layout import EQUAL_SIZES, POINT_TO_POINT, CallFlag, Op

# A call of the program is its signature and its line. What the ring holds is looked at, in windows of so many calls.
WINDOW = 32
CONTEXT = 12
LONGEST_TURN = 16  # calls in one turn of an inner loop
LAST_CALLS = 8  # in which a rank that waits now can have left its routine
STEADY = 0.9  # a prediction counts when it was right so often in this rank's own past

_NAMING = (Op.SEND, Op.RECV)
Symbol = tuple[int, str, str, int, int, int, str]
S = TypeVar("S", bound=Hashable)  # what tells one statement from another: a Symbol, or the way to a call


def symbol(call: Call) -> Symbol:
    """What makes two calls the same statement of the program: the line, the operation, the sizes where they must agree.

    Not the root: programs let it go round, and then every turn would be a statement of its own.
    """
    sized = call.op in EQUAL_SIZES and not call.flags & CallFlag.OBJECT
    peer = call.root if call.op in POINT_TO_POINT else 0
    shape, dtype = (call.shape, call.dtype) if sized else ("", "")
    line, path = (call.site.line, call.site.path) if call.line_recorded else (0, "")  # as those before it have none
    return int(call.op), shape, dtype, int(call.reduce_op), line, peer, path


def line_of(statement: Symbol) -> tuple[int, str]:
    """The source line of a statement."""
    return statement[4], statement[6]


@dataclass(frozen=True)
class ExecutedStatements(Generic[S]):
    """The statements that a rank has executed, in order, as far back as its ring goes."""

    symbols: tuple[S, ...]

    @classmethod
    def of(cls, timeline: Timeline, before_seq: int, *, limit: int = 2048) -> ExecutedStatements[Symbol]:
        """The calls of a rank before the one with that number in its log."""
        rows = timeline.log.calls
        rows = rows[rows["seq"] < before_seq][-limit:]
        if not rows[
            "returned_ns"
        ].any():  # a dump of what is active: what was complete in between is not there, so it is no past
            return ExecutedStatements(())
        known: dict[tuple[int, ...], Symbol] = {}
        found = []
        answers = bool((rows["op"] == int(Op.RECV_ANY)).any())  # then whoever was heard decides whom the next ones name
        names = ("signature", "site", "root", "op", "dtype", "shape", "flags")
        for row in rows:
            key = tuple(int(row[name]) for name in names)
            if key not in known:
                one = timeline.log.call(row)
                known[key] = symbol(replace(one, root=0) if answers and one.op in _NAMING else one)
            found.append(known[key])
        return ExecutedStatements(tuple(found))

    def expected(self) -> S | None:
        """What came next whenever the last calls were these; None when the past does not say, or says different things.

        That a loop ended after so many turns once is no habit: it takes two precedents to expect its end.
        """
        for length in range(min(CONTEXT, len(self.symbols) - 1), 0, -1):
            context = self.symbols[-length:]
            following = [
                self.symbols[at + length]
                for at in range(len(self.symbols) - length)
                if self.symbols[at] == context[0] and self.symbols[at : at + length] == context
            ]
            if len(following) > 1 or (following and following[0] in (self._next_turns() or following)):
                best = max(set(following), key=following.count)
                return best if following.count(best) >= STEADY * len(following) else self._next_turn()
        return None

    def _next_turn(self) -> S | None:
        """What begins another turn of the loop that the last statements are turns of, when that loop never ended after so few
        turns or fewer; None otherwise. What followed the loop the last time tells its end from a pause in it."""
        past = self.symbols
        longest = min(LONGEST_TURN, len(past) // 2)
        length = next((n for n in range(1, longest + 1) if past[-n:] == past[-2 * n : -n]), 0)
        *ended, now = _runs(past, length) if length else [range(0)]
        turns = [len(run) for run in ended if past[run.stop] == past[ended[-1].stop]]
        return past[-length] if turns and min(turns) > len(now) else None

    def _next_turns(self) -> set[S]:
        """What would come next if the statements that were those before them once more came yet another time."""
        lengths = range(1, min(LONGEST_TURN, len(self.symbols) // 2) + 1)
        return {
            self.symbols[-length] for length in lengths if self.symbols[-length:] == self.symbols[-2 * length : -length]
        }

    def distance(self, one: S, other: S) -> int | None:
        """How many statements after `one` the statement `other` came at the earliest, before `one` came again.

        None when it did not come, or not steadily.
        """
        starts = [at for at, found in enumerate(self.symbols) if found == one]
        gaps: list[int] = []
        for at, following in zip(starts, [*starts[1:], len(self.symbols)], strict=False):
            ahead = self.symbols[at + 1 : min(following, at + 1 + WINDOW)]
            if other in ahead:
                gaps.append(ahead.index(other) + 1)
            elif following < len(self.symbols):  # else its time had not come yet
                gaps.append(0)
        met = [gap for gap in gaps if gap]
        return min(met) if met and len(met) >= STEADY * len(gaps) else None

    def knows(self, statement: S) -> bool:
        return statement in self.symbols


def _runs(past: Sequence[S], length: int) -> list[range]:
    """Where the last so many statements came in a row, each time that they came, with a step of a turn."""
    turn, found, at = past[-length:], [], len(past)
    while at > 0:
        since = at
        while at >= length and past[at - length : at] == turn:
            at -= length
        found += [range(at, since, length)] if at < since else []
        at -= at == since
    return found[::-1]


def issued_from(timeline: Timeline, seq: int, *, limit: int = WINDOW) -> list[Call]:
    """The calls of a rank from the one with that number in its log on."""
    rows = timeline.log.calls
    return [timeline.log.call(row) for row in rows[rows["seq"] >= seq][:limit]]


def deviation(timeline: Timeline) -> tuple[Call, Symbol] | None:
    """The first of a rank's last calls that was not what its own past led to expect, and what was expected instead."""
    return next(deviations(timeline), None)


def deviations(timeline: Timeline) -> Iterator[tuple[Call, Symbol]]:
    """All of a rank's last calls that were not what its own past led to expect, and what was expected instead."""
    seqs = timeline.log.calls["seq"][-LAST_CALLS:]
    whole = ExecutedStatements.of(timeline, 1 << 62)
    length = len(whole.symbols)
    for back in range(min(len(seqs), length), 0, -1):
        expected = ExecutedStatements(whole.symbols[: length - back]).expected()
        if expected is not None and expected != whole.symbols[length - back]:
            yield timeline.log.call(timeline.log.calls[-back]), expected


def is_statement(call: Call, expected: Symbol) -> bool:
    """Whether a call is the statement that was expected. Of one that answers whoever was heard the peer is not expected."""
    own = symbol(call)
    return own == expected or (call.op in _NAMING and expected == symbol(replace(call, root=0)))


SKIPPED, ADDED, SWAPPED, REPLACED, UNCLEAR = "skipped", "added", "swapped", "replaced", "unclear"


@dataclass(frozen=True)
class CallEdit:
    """How one rank left the path of the others. `how` SKIPPED: it left out `count` calls; ADDED: it made one that they did not;
    SWAPPED: it made the next two in the other order; REPLACED: it made another one in its place; UNCLEAR: nothing tells."""

    how: str
    count: int = 1


def is_repeated(timeline: Timeline, call: Call) -> bool:
    """Whether the call is the one before it once more, within one optimizer step: not the next turn of a loop."""
    rows = timeline.log.calls
    before = rows[rows["seq"] < call.seq][-1:]
    return (
        bool(len(before))
        and 0 < call.step == int(before[0]["step"])
        and symbol(timeline.log.call(before[0])) == symbol(call)
    )


def is_reordered(theirs: Sequence[Symbol], mine: Sequence[Symbol]) -> bool:
    """Whether statements that each side issues once come in another order: no skip and no next turn of a loop does that."""
    once = [one for one in mine if mine.count(one) == theirs.count(one) == 1]
    places = [theirs.index(one) for one in once]
    return places != sorted(places)


def departure(
    theirs: Sequence[Call], mine: Sequence[Call], past: ExecutedStatements[Symbol], *, is_repeated: bool = False
) -> CallEdit:
    """How the rank of `mine` left the path of `theirs`. Both begin at the number where they part.

    What both did afterwards decides; where one of them is stuck at once, the program's past does. `is_repeated`: the first call
    of `mine` is the one before it once more.
    """
    a, b = [symbol(call) for call in theirs], [symbol(call) for call in mine]
    if a[0] == b[0]:
        return CallEdit(REPLACED)
    if len(a) > 1 and len(b) > 1 and a[0] == b[1] and a[1] == b[0]:
        # Of two calls that take turns a skip looks like a swap at first: the calls behind it tell.
        return CallEdit(SWAPPED) if _agree(a[2:], b[2:]) or not _agree(a[1:], b) else CallEdit(SKIPPED, 1)
    follows = None if is_repeated else past.distance(a[0], b[0])
    if len(b) > 1 and b[1] == a[0] and follows == 1 and _is_next_turn(theirs[0], mine[0], past):
        return CallEdit(SKIPPED, 1)
    if len(b) > 1 and b[1] == a[0] and (follows == 1 or not past.knows(b[0])):
        return CallEdit(SWAPPED if follows == 1 else ADDED)
    if b[0] in a[1:] and a[0] in b[1:] and not past.knows(a[0]) and not past.knows(b[0]):
        return CallEdit(SWAPPED)  # each comes to the other's call later on, and none is a loop's next turn
    if not past.knows(a[0]) and not past.knows(b[0]) and is_reordered(a, b):
        return CallEdit(SWAPPED)
    if b[0] in a[1:]:
        return CallEdit(SKIPPED, a.index(b[0]))
    if a[0] in b[1:] and not past.knows(b[0]):
        return CallEdit(ADDED, b.index(a[0]))
    if len(a) > 1 and len(b) > 1 and a[1] == b[1]:
        return CallEdit(REPLACED)
    if follows is not None:
        return CallEdit(SKIPPED, follows)
    if theirs[0].site == mine[0].site:
        return CallEdit(REPLACED)
    return CallEdit(UNCLEAR)


def _agree(theirs: Sequence[Symbol], mine: Sequence[Symbol]) -> bool:
    """Whether two ways through the program are the same as far as both are known."""
    return all(one == other for one, other in zip(theirs, mine, strict=False))


def _is_next_turn(usual: Call, odd: Call, past: ExecutedStatements[Symbol]) -> bool:
    """Whether the odd call, which follows the usual one in this program, does so in the next turn of its loop: an optimizer step
    lies between, or where none are made, the program began with the odd one. Nobody swaps calls of two turns."""
    if usual.step or odd.step:
        return odd.step > usual.step
    one, other = symbol(usual), symbol(odd)
    return past.knows(one) and past.knows(other) and past.symbols.index(other) < past.symbols.index(one)
