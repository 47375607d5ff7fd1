"""When each rank was in which call: the rows of the picture of collectives, by time instead of by number."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from markupsafe import Markup

from distdoctor.diagnosis.facts.collectives import Collectives, GroupCalls, Track
from distdoctor.recording.recording import Call
from distdoctor.recording.trace.layout import FROM_ALL, CallFlag
from distdoctor.report.pictures.drawing import LETTER, ROW, Sheet, cut, ticks

WIDE, MARGIN = 820.0, 150.0
LANE = 2 * ROW + 6
LEAST = 4.0  # pixels of a call, so that it can be pointed at
BEYOND = 0.35  # of the time shown: how far a call that has not come back is drawn beyond the last one that has


@dataclass(frozen=True)
class Span:
    """One call of the ranks of a row, in seconds since the first call that is shown: from the first rank's entry to the last
    one's return, None where it has not come back on all of them. `waited`: seconds, as far as was seen; 0 where it is over."""

    number: int
    op: str
    words: str
    site: str
    since: float
    until: float | None
    waited: float = 0.0

    @property
    def times(self) -> str:
        """`0.012-0.034 s`, `since 0.012 s`."""
        return f"since {self.since:.3f} s" if self.until is None else f"{self.since:.3f}-{self.until:.3f} s"

    @property
    def title(self) -> str:
        more = f", waited {self.waited:.1f} s" if self.until is None and self.waited >= 0.1 else ""
        return f"#{self.number}: {self.words}, {self.site}, {self.times}{more}"


@dataclass(frozen=True)
class What:
    """What calls have in common that look alike: `all_reduce` of `[64, 3]`, and the line."""

    op: str
    words: str
    site: str


class Issued(NamedTuple):
    """A call of one rank: when it was entered and when it came back (0: it has not), wall clock, nanoseconds."""

    what: What
    entered: int
    returned: int
    open: bool  # somebody waits in it


def issued(group: GroupCalls, numbers: range, waiting: frozenset[tuple[int, int]]) -> dict[int, dict[int, Issued]]:
    """rank -> number -> call, of all ranks of a group. `waiting`: rank and number of the calls that somebody waits in, an
    asynchronous one by its handle. Thousands of ranks call the same: it is put into words once."""
    words: dict[tuple[int, str, str], What] = {}
    behind = min(group.counts.values(), default=0)
    return {rank: dict(_issued(track, numbers, waiting, words, behind)) for rank, track in sorted(group.tracks.items())}


def _issued(
    track: Track,
    numbers: range,
    waiting: frozenset[tuple[int, int]],
    words: dict[tuple[int, str, str], What],
    behind: int,
) -> Iterator[tuple[int, Issued]]:
    """By number. `behind`: of the last call of the member that came least far; what needs all members is not over beyond it,
    returned to its caller or not."""
    log, timeline = track.timeline.log, track.timeline
    first, last = np.searchsorted(track.rows["number"], [numbers.start, numbers.stop])
    rows = track.rows[first:last]
    columns = (rows[name].tolist() for name in ("number", "op", "shape", "site", "flags", "entered_ns", "returned_ns"))
    for at, (number, op, shape, site, flags, entered, returned) in enumerate(zip(*columns, strict=True)):
        key = op, log.text(shape), log.text(site)
        what = words.get(key)
        if what is None:
            what = words[key] = _what(log.call(rows[at]))
        is_async = bool(flags & CallFlag.ASYNC)
        needs_all = number > behind and op in FROM_ALL
        is_open = (track.rank, number) in waiting or (needs_all if is_async else not returned)
        back = 0 if is_open else timeline.wall(returned or entered)
        yield number, Issued(what, timeline.wall(entered), back, is_open)


def _what(call: Call) -> What:
    return What(call.op.word, f"{call.op.word} {call.shape}".strip(), call.site.short if call.site else "")


def spans_of(
    facts: Collectives, calls: Mapping[int, Mapping[int, Issued]], rows: Sequence[Sequence[int]], numbers: range
) -> list[dict[int, Span]]:
    """For each row of ranks its calls by number."""
    found = [
        {n: [call for rank in ranks if (call := calls[rank].get(n)) is not None] for n in numbers} for ranks in rows
    ]
    start = min((call.entered for row in found for alike in row.values() for call in alike), default=0)
    now = (timeline.wall(at) for timeline in facts.timelines.values() if (at := facts.now_ns(timeline)))
    last = max(facts.last_wall_ns, *now, 0)
    return [{n: _span(n, alike, start, last) for n, alike in row.items() if alike} for row in found]


def _span(number: int, alike: Sequence[Issued], start: int, last: int) -> Span:
    what = alike[0].what
    since = min(call.entered for call in alike)
    over = all(call.returned for call in alike)
    until = (max(call.returned for call in alike) - start) / 1e9 if over else None
    waited = 0.0 if over else max(0.0, (last - since) / 1e9)
    return Span(number, what.op, what.words, what.site, (since - start) / 1e9, until, waited)


def draw(label: str, names: Sequence[str], rows: Sequence[dict[int, Span]], kinds: dict[str, str]) -> Markup:
    """One lane for each row, seconds from left to right."""
    left = max(map(len, names), default=0) * LETTER + 14
    every = [span for row in rows for span in row.values()]
    last = max((span.since if span.until is None else span.until for span in every), default=0.0) or 1e-3
    is_open = any(span.until is None for span in every)
    scale = WIDE / (last * (1 + BEYOND if is_open else 1))
    sheet = Sheet(left + WIDE + MARGIN, 26 + LANE * len(rows) + 10, label)
    _draw_axis(sheet, left, scale, last)
    for line, row in enumerate(rows):
        top = 26.0 + line * LANE
        sheet.text(0, top + LANE / 2 + 2, names[line], "strong" if line else "")
        spans = list(row.values())
        for span, after in zip(spans, [*spans[1:], None], strict=False):
            begin = left + span.since * scale
            end = left + (WIDE if span.until is None else span.until * scale)
            limit = left + after.since * scale if after is not None else left + WIDE + MARGIN
            fits = end - begin >= LETTER * len(f"#{span.number} {span.op} ")
            room = (
                min(end, limit) - begin if fits else limit - begin - 4
            )  # a row of several ranks may begin before one is over
            _draw_span(sheet, begin, end, top, span, kinds[span.op], room)
    return sheet.done()


def _draw_axis(sheet: Sheet, left: float, scale: float, last: float) -> None:
    unit, name = (1.0, "s") if last >= 2 else (1e-3, "ms") if last >= 2e-3 else (1e-6, "µs")
    for tick in ticks(last / unit, 6):
        x = left + tick * unit * scale
        sheet.line([(x, 20), (x, sheet.height - 6)], "grid")
        sheet.text(x + 3, 14, f"{tick:g} {name}", "quiet")


def _draw_span(sheet: Sheet, begin: float, end: float, top: float, span: Span, kind: str, room: float) -> None:
    """The bar, and as many words as fit before the next one begins."""
    state = " open" if span.until is None else ""
    sheet.rect(begin, top, max(end - begin, LEAST), LANE - 4, f"soft {kind}{state}", span.title)
    letters = int((room - 4) / LETTER)
    if letters >= len(f"#{span.number}"):
        waited = f", waited {span.waited:.1f} s" if span.until is None and span.waited >= 0.1 else ""
        sheet.text(begin + 4, top + 15, cut(f"#{span.number} {span.words}".rstrip(), letters))
        if letters > 8:
            sheet.text(begin + 4, top + 30, cut(f"{span.site}{waited}", letters), "quiet")
