"""What each rank issued around the place where the ranks part: ranks x sequence number, equal rows together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from markupsafe import Markup

from distdoctor.diagnosis.derived import derived
from distdoctor.diagnosis.facts.collectives import GroupCalls, Track
from distdoctor.diagnosis.hang.verdict import Verdict
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Call, Recording
from distdoctor.report.pictures import call_times
from distdoctor.report.pictures.drawing import LETTER, ROW, Picture, Sheet, View, colour, cut, cut_front
from distdoctor.report.table import Table

BEFORE, AFTER = 5, 4
MOST_ROWS = 40
CELL = 142.0


@dataclass(frozen=True)
class _Cell:
    """What one rank did at one number. `words` "": nothing; `open`: it was issued and has not come back."""

    words: str = ""
    site: str = ""
    open: bool = False
    forgotten: bool = False


def picture(recording: Recording) -> Picture | None:
    """Of the group in which the ranks part, or in which one waits for the other; None where nobody does."""
    verdict = derived(Verdict, recording)
    chosen = _around(verdict)
    if chosen is None:
        return None
    group, number = chosen
    numbers = range(max(1, number - BEFORE), number + AFTER + 1)
    calls = call_times.issued(group, numbers, _waited_in(verdict, group))
    rows: dict[tuple[_Cell, ...], list[int]] = {}
    for rank, own in calls.items():
        rows.setdefault(tuple(_cell(group.tracks[rank], n, own.get(n)) for n in numbers), []).append(rank)
    numbers = range(numbers[0], _last_used(numbers, rows) + 1)
    shown = sorted(rows.items(), key=lambda row: (-len(row[1]), row[1]))[:MOST_ROWS]
    kinds = _kinds(cell.words for cells, _ in shown for cell in cells)
    states = _states(cell for cells, _ in shown for cell in cells[: len(numbers)])
    label = f"collectives of {group.words} around #{number}"
    by_number = _draw(label, numbers, number, shown, kinds)
    spans = call_times.spans_of(verdict.facts, calls, [ranks for _, ranks in shown], numbers)
    by_time = call_times.draw(f"{label}, by time", [_name(ranks) for _, ranks in shown], spans, kinds)
    return Picture(
        "collectives",
        f"What each rank called around #{number} of {group.words}",
        f"{_caption(group, number, shown, len(rows))} {_on_time(verdict)}",
        by_number,
        _table(numbers, shown, spans),
        (*((kind, words) for words, kind in kinds.items()), *states),
        (View("by number", by_number), View("by time", by_time)),
        "Order",
    )


def _waited_in(verdict: Verdict, group: GroupCalls) -> frozenset[tuple[int, int]]:
    """Rank and number of the calls of a group that somebody waits in. Where the ranks called different operations, those of all
    sides that issued nothing after it: an asynchronous one has returned to its caller, and is not over."""
    waits = [wait for wait in verdict.waits if wait.group is group]
    calls = {(call.rank, call.number) for wait in waits for call in wait.calls}
    sides = (variant for wait in waits if wait.broken is not None for variant in wait.broken.variants)
    last = {(call.rank, call.number) for side in sides for call in side.calls if _is_last(group, call)}
    return frozenset(calls | last)


def _is_last(group: GroupCalls, call: Call) -> bool:
    return call.rank in group.tracks and group.tracks[call.rank].count == call.number


def _on_time(verdict: Verdict) -> str:
    clocks = "" if verdict.facts.one_host else ", as well as the clocks of the hosts agree"
    return f"By time, a bar runs from the first rank's call to the last one's return{clocks}."


def _around(verdict: Verdict) -> tuple[GroupCalls, int] | None:
    """The group and the number at which its ranks part: by what they called, else by how far they came."""
    if verdict.divergences:
        first = min(verdict.divergences, key=lambda one: one.at_ns)
        return first.group, first.number
    for wait in verdict.waits:
        if wait.group is not None and wait.on:
            return wait.group, wait.call.number
    for group in verdict.facts.groups:
        counts = set(group.counts.values())
        if len(counts) > 1 and verdict.recording.job.exit_code != 0:
            return group, min(counts) + 1
    return None


def _cell(track: Track, number: int, call: call_times.Issued | None) -> _Cell:
    if call is None:
        return _Cell(forgotten=number < track.first and number <= track.count)
    return _Cell(call.what.words, call.what.site, call.open)


def _last_used(numbers: range, rows: dict[tuple[_Cell, ...], list[int]]) -> int:
    used = [n for n, column in zip(numbers, zip(*rows, strict=True), strict=True) if any(cell.words for cell in column)]
    return max(used, default=numbers[0])


def _kinds(words: Iterable[str]) -> dict[str, str]:
    """Each operation with its colour, in the order in which they are met."""
    kinds: dict[str, str] = {}
    for one in words:
        op = one.partition(" ")[0]
        if op and op not in kinds:
            kinds[op] = colour(len(kinds) % 7)
    return kinds


def _states(cells: Iterable[_Cell]) -> list[tuple[str, str]]:
    """What the legend has to explain besides operations."""
    seen = {"none open" if cell.open else "none" for cell in cells if cell.open or not cell.words}
    words = {"none open": "has not come back", "none": "not called"}
    return [(kind, name) for kind, name in words.items() if kind in seen]


def _caption(group: GroupCalls, number: int, shown: list[tuple[tuple[_Cell, ...], list[int]]], rows: int) -> str:
    most = shown[0][1]
    if len(most) == 1 and rows == len(shown):
        return f"Each row is one rank. The frame marks #{number}."
    words = f"{len(most)} identical ranks ({named(most)})" if len(most) > 1 else named(most)
    more = f"; {rows - len(shown)} more rows are left out" if rows > len(shown) else ""
    return f"Each row stands for ranks that called the same: the first for {words}. The frame marks #{number}{more}."


def _draw(
    label: str, numbers: range, number: int, shown: list[tuple[tuple[_Cell, ...], list[int]]], kinds: dict[str, str]
) -> Markup:
    names = [_name(ranks) for _, ranks in shown]
    left = max(map(len, names)) * LETTER + 14
    height = 2 * ROW + 6
    sheet = Sheet(left + CELL * len(numbers) + 8, 26 + height * len(shown) + 6, label)
    for column, n in enumerate(numbers):
        sheet.text(left + column * CELL + 4, 16, f"#{n}", "strong" if n == number else "quiet")
    for line, (cells, ranks) in enumerate(shown):
        top = 26 + line * height
        is_odd = len(ranks) < len(shown[0][1])  # of two alike in number nobody is the odd one
        sheet.text(0, top + height / 2 + 2, names[line], "strong" if is_odd else "")
        for column, n in enumerate(numbers):
            _draw_cell(sheet, left + column * CELL, top, height, cells[column], kinds, n)
    if number in numbers:
        sheet.rect(left + (number - numbers[0]) * CELL - 2, 4, CELL, height * len(shown) + 22, "frame")
    return sheet.done()


def _draw_cell(
    sheet: Sheet, x: float, top: float, height: float, cell: _Cell, kinds: dict[str, str], number: int
) -> None:
    if not cell.words:
        sheet.rect(
            x, top, CELL - 4, height - 4, "none", f"#{number}: {'forgotten' if cell.forgotten else 'not called'}"
        )
        return
    state = " open" if cell.open else ""
    words = f"#{number}: {cell.words}, {cell.site}{', has not come back' if cell.open else ''}"
    sheet.rect(x, top, CELL - 4, height - 4, f"soft {kinds[cell.words.partition(' ')[0]]}{state}", words)
    letters = int((CELL - 12) / LETTER)
    sheet.text(x + 5, top + 15, cut(cell.words, letters))
    sheet.text(x + 5, top + 30, cut_front(cell.site, letters), "quiet")


def _name(ranks: list[int]) -> str:
    return f"{cut(named(ranks), 24)} ({len(ranks)})" if len(ranks) > 2 else named(ranks)


def _table(
    numbers: range, shown: list[tuple[tuple[_Cell, ...], list[int]]], spans: list[dict[int, call_times.Span]]
) -> Table:
    def words(cell: _Cell, span: call_times.Span | None) -> str:
        when = f", {span.times}" if span is not None else ""
        return f"{cell.words} {cell.site}{' (open)' if cell.open else ''}{when}" if cell.words else "-"

    rows = tuple(
        (named(ranks), *(words(cell, mine.get(n)) for n, cell in zip(numbers, cells, strict=False)))
        for (cells, ranks), mine in zip(shown, spans, strict=True)
    )
    return Table("collectives", "collectives by rank and number", ("ranks", *(f"#{n}" for n in numbers)), rows)
