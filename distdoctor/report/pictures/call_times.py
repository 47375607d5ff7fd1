"""When each rank was in which call: the rows of the picture of collectives, by time instead of by number."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from distdoctor.diagnosis.facts.collectives import Collectives, GroupCalls
from distdoctor.recording.recording import Call
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


def spans_of(
    facts: Collectives,
    group: GroupCalls,
    rows: Sequence[Sequence[int]],
    numbers: range,
    waiting: frozenset[tuple[int, int]],
) -> list[dict[int, Span]]:
    """For each row of ranks its calls by number. `waiting`: rank and number of those that somebody waits in."""
    calls = [{n: list(_calls(group, ranks, n, waiting)) for n in numbers} for ranks in rows]
    entered = [since for row in calls for found in row.values() for _, since, _ in found]
    start = min(entered, default=0)
    now = (timeline.wall(at) for timeline in facts.timelines.values() if (at := facts.now_ns(timeline)))
    last = max(facts.last_wall_ns, *now, 0)
    return [
        {n: _span(n, found, start, last) for n, found in row.items() if found}
        for row in calls
    ]  # fmt: skip


def _calls(
    group: GroupCalls, ranks: Sequence[int], number: int, waiting: frozenset[tuple[int, int]]
) -> Iterator[tuple[Call, int, int]]:
    """The call of that number of each rank, when it was entered and when it came back (0: it has not), on the wall clock."""
    for rank in ranks:
        track = group.tracks[rank]
        call = track.call(number)
        if call is not None:
            returned = call.returned_ns or (call.entered_ns if call.is_async else 0)
            returned = 0 if (rank, number) in waiting else returned
            yield call, track.timeline.wall(call.entered_ns), track.timeline.wall(returned)


def _span(number: int, found: Sequence[tuple[Call, int, int]], start: int, last: int) -> Span:
    call = found[0][0]
    since = min(entered for _, entered, _ in found)
    over = all(returned for _, _, returned in found)
    until = (max(returned for _, _, returned in found) - start) / 1e9 if over else None
    waited = 0.0 if over else max(0.0, (last - since) / 1e9)
    site = call.site.short if call.site else ""
    words = f"{call.op.word} {call.shape}".strip()
    return Span(number, call.op.word, words, site, (since - start) / 1e9, until, waited)


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
            room = (left + after.since * scale if after is not None else left + WIDE + MARGIN) - begin - 4
            room = end - begin if end - begin >= LETTER * len(f"#{span.number} {span.op} ") else room
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
