"""The user's calls that led to a collective, as far as they are on record: the line itself and up to two callers of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distdoctor.diagnosis.facts.collectives import Collectives, GroupCalls, Track
from distdoctor.diagnosis.hang.program import ExecutedStatements
from distdoctor.diagnosis.source.rank_guard import ENCLOSES, guards_of_one
from distdoctor.recording.recording import Call, SourceLine
from distdoctor.recording.trace.layout import CHAIN_MARK, GOLDEN, POINT_TO_POINT, Op, Span, chain_of, digest_of

Chain = list[tuple[str, Span, str]]
_HABIT = 2048  # calls back
_UNDO = np.uint64(pow(GOLDEN, -1, 1 << 64))


def callers_of(facts: Collectives, call: Call | None) -> tuple[SourceLine, ...]:
    """The lines that called the function of a call, the nearest first; () where that is not on record.

    Of a call whose site is one of those already, the lines beyond it.
    """
    chain = _chain_of(facts, call) if call is not None else []
    if call is None or not chain:
        return ()
    sites = [SourceLine(path, span[0], function) for path, span, function in chain]
    if call.site in sites[1:]:
        return tuple(sites[sites.index(call.site, 1) + 1 :])
    return tuple(sites[1:]) if sites and sites[0].path == call.site.path else ()


def sent_otherwise(facts: Collectives, odd: int) -> tuple[SourceLine, ...]:
    """The line whose messages one rank has sent more or less often than all others that send from it, who agree, and its
    callers: an exchange with neighbours, of which a loop makes one more somewhere. () where there is none, or where not every
    message is on record."""
    counts: dict[int, Counter[int]] = {}
    for rank, timeline in facts.timelines.items():
        rows = timeline.log.calls
        sent = rows["site_prefix"][rows["op"] == int(Op.SEND)]
        if timeline.log.lost.get("calls") or not len(sent):
            return ()
        counts[rank] = Counter(sent.tolist())
    others = [counts[rank] for rank in counts if rank != odd]
    for word, times in counts.get(odd, Counter()).items() if len(others) > 1 else ():
        usual = {one[word] for one in others}
        chain = _chains_in(facts.timelines[odd].log.texts).get(word)
        if len(usual) == 1 and usual != {times} and chain:
            return tuple(SourceLine(path, span[0], function) for path, span, function in chain)
    return ()


def _chain_of(facts: Collectives, call: Call) -> Chain:
    """The calls that led to one, itself first; [] where that is not on record."""
    if call.op in POINT_TO_POINT:
        log = facts.timelines[call.rank].log
        words = log.calls[log.calls["seq"] == call.seq]["site_prefix"]
        return _chains_in(log.texts).get(int(words[0]), []) if len(words) == 1 else []
    group = facts.group_of(call)
    if group is None or call.rank not in group.tracks:
        return []
    track = group.tracks[call.rank]
    words = words_of(track, call.number, call.number)
    return chains([track]).get(int(words[0]), []) if len(words) == 1 else []


@dataclass(frozen=True)
class Parted:
    """Two collectives where the calls that led to them part: their lines there, and what called the functions of those.

    Where a helper issues both, that is not the line of either. `other` is empty where there is no second one.
    """

    one: SourceLine
    other: SourceLine
    callers: tuple[tuple[SourceLine, ...], tuple[SourceLine, ...]] = ((), ())

    @classmethod
    def of(cls, facts: Collectives, one: Call, other: Call | None) -> Parted:
        if other is None:
            return cls(one.site, SourceLine(), (callers_of(facts, one), ()))
        mine, theirs = (one.site, *callers_of(facts, one)), (other.site, *callers_of(facts, other))
        in_one = cls.in_one_body(facts, one, other)
        if in_one is not None and _by_condition(facts.recording.sources, in_one.one, in_one.other):
            return in_one
        same = 0
        while same < min(len(mine), len(theirs)) and mine[same] == theirs[same]:
            same += 1
        if same == min(len(mine), len(theirs)):  # they part further up, if anywhere
            same = 0
        return cls(mine[same], theirs[same], (mine[same + 1 :], theirs[same + 1 :]))

    @classmethod
    def in_one_body(cls, facts: Collectives, one: Call, other: Call) -> Parted | None:
        """The same where both are led to by one body, at its lines; None where none is on record."""
        mine, theirs = (one.site, *callers_of(facts, one)), (other.site, *callers_of(facts, other))
        outermost = _parted_in_one_body(mine, theirs)
        if outermost is None:
            return None
        here, there = outermost
        return cls(mine[here], theirs[there], (mine[here + 1 :], theirs[there + 1 :]))

    @property
    def by_callers(self) -> tuple[SourceLine, ...]:
        """What called them, up to the body that both were reached from; those of the first one first."""
        mine, theirs = (self.one, *self.callers[0]), (self.other, *self.callers[1])
        bodies = {*map(_body, mine)} & {*map(_body, theirs)}
        found = (*_within(mine, bodies), *_within(theirs, bodies))
        return tuple(site for site in found if site not in (self.one, self.other) and site.function != "<module>")


def _parted_in_one_body(mine: Sequence[SourceLine], theirs: Sequence[SourceLine]) -> tuple[int, int] | None:
    """Where two chains leave one body by different lines, the outermost such place: what sends the ranks apart further in, as a
    flag that they are called with does, only follows from that. None where the bodies are not the same up to there."""
    here, there = _up_to_one_body(mine, theirs), _up_to_one_body(theirs, mine)
    while here and there:
        here, there = here - 1, there - 1
        one, other = mine[here], theirs[there]
        if _body(one) != _body(other):
            return None
        if one.line != other.line:
            return here, there
    return None


def _up_to_one_body(chain: Sequence[SourceLine], other: Sequence[SourceLine]) -> int:
    """How much of a chain there is up to the body in which the other one ends: of the deeper one less is on record."""
    bodies = [_body(site) for site in chain]
    return len(bodies) - bodies[::-1].index(_body(other[-1])) if _body(other[-1]) in bodies else len(bodies)


def _body(site: SourceLine) -> tuple[str, str]:
    return site.path, site.function


def _by_condition(sources: Mapping[str, str], one: SourceLine, other: SourceLine) -> bool:
    """Whether one of two lines stands inside a condition that the other is not in."""
    guards = (*guards_of_one(sources, one, other), *guards_of_one(sources, other, one))
    return any(guard.how == ENCLOSES for guard in guards)


def _within(chain: tuple[SourceLine, ...], bodies: set[tuple[str, str]]) -> tuple[SourceLine, ...]:
    """A chain of calls up to the first of these bodies."""
    end = next((at for at, site in enumerate(chain) if _body(site) in bodies), len(chain))
    return chain[: end + 1]


def chains(tracks: Iterable[Track]) -> Mapping[int, Chain]:
    """The calls that led to a collective, by the word that they are in the running digest."""
    return _chains_in({text for track in tracks for text in track.timeline.log.texts})


def _chains_in(texts: Iterable[str]) -> Mapping[int, Chain]:
    marked = {text for text in texts if text.startswith(CHAIN_MARK)}
    return {digest_of(text): chain for text in marked if (chain := chain_of(text)) is not None}


def came_another_way(group: GroupCalls, mine: Call, other: Call) -> bool:
    """Whether a rank always came to its calls here as the other side does, and this time in another way."""
    track = group.tracks[mine.rank]
    words = words_of(track, max(track.first, mine.number - _HABIT), mine.number).tolist()
    theirs = words_of(group.tracks[other.rank], other.number, other.number).tolist()
    expected = (
        ExecutedStatements(tuple(words[:-1])).expected() if words and theirs and words[-1] and theirs[0] else None
    )
    return expected is not None and expected == theirs[0] != words[-1]


def words_of(track: Track, first: int, last: int) -> NDArray[np.uint64]:
    """The words by which calls extended the running digest of call sites, taken back out of it.

    0 for a call of which the one before is forgotten.
    """
    rows = track.rows
    at = int(np.searchsorted(rows["number"], first))
    before = rows[at - 1 : at]["site_prefix"] if at else np.zeros(1, dtype=np.uint64)
    prefixes = np.concatenate([before, rows[at : at + last - first + 1]["site_prefix"]]).astype(np.uint64)
    words: NDArray[np.uint64] = ((prefixes[1:] - np.uint64(1)) * _UNDO) ^ prefixes[:-1]
    if not at and first > 1 and len(words):
        words[0] = 0
    return words
