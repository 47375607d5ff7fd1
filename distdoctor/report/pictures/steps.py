"""Where the time of a step goes, rank by rank, and by whom the others are held up."""

from __future__ import annotations

import math

import numpy as np

from distdoctor.diagnosis.check import NotSeen
from distdoctor.diagnosis.derived import derived
from distdoctor.diagnosis.speed.step_times import PHASES, StepTimes, step_times
from distdoctor.diagnosis.speed.timing import Timing
from distdoctor.recording.rank_set import compress
from distdoctor.recording.recording import Recording
from distdoctor.report.pictures.drawing import ROW, Picture, Sheet, colour, cut, ticks
from distdoctor.report.step_table import step_table
from distdoctor.report.table import Table, milliseconds

COLOURS = {"data": 1, "forward": 0, "backward": 5, "waiting": 7, "optimizer": 2, "other": 6}
WIDE = 640.0
LEFT = 110.0
NAME = 15  # letters to the left of a bar
MOST_ROWS = 48
NARROWEST = 1e5  # nanoseconds from left to right: where nobody is late, no axis of picoseconds


def phases(recording: Recording) -> Picture | None:
    """The median step of each rank as a bar; ranks that are alike to a fiftieth of a step are one row."""
    times, table = step_times(recording), step_table(recording)
    if not times or table is None:
        return None
    rows: dict[tuple[int, ...], list[StepTimes]] = {}
    for one in times:
        unit = max(one.step / 50, 1.0) if len(times) > MOST_ROWS else 1.0
        rows.setdefault(tuple(round(_known(one.of(phase)) / unit) for phase in PHASES), []).append(one)
    shown = list(rows.values())[:MOST_ROWS]
    most = max(one[0].step for one in shown)
    sheet = Sheet(LEFT + WIDE + 80, 30 + (ROW + 8) * len(shown) + 10, "step times by phase and rank")
    for tick in ticks(most / 1e6):
        x = LEFT + WIDE * tick * 1e6 / most
        sheet.line([(x, 22), (x, sheet.height - 8)], "grid")
        sheet.text(x, 14, f"{tick:g} ms", "quiet", "middle")
    for number, alike in enumerate(shown):
        _bar(sheet, 28 + number * (ROW + 8), alike, most)
    kinds = tuple((f"{colour(COLOURS[phase])}", phase) for phase in PHASES)
    kinds = (*kinds, ("none", "in no phase, or more than its median"))
    caption = " ".join((f"{table.title}.", *(note.strip() + "." for note in table.notes)))
    return Picture("step_phases", "Where the time of a step goes", caption, sheet.done(), table, kinds)


def _known(value: float) -> float:
    return 0.0 if math.isnan(value) else value


def _bar(sheet: Sheet, top: float, alike: list[StepTimes], most: float) -> None:
    one = alike[0]
    ranks = [other.rank for other in alike]
    sheet.text(
        0, top + 13, f"rank {ranks[0]}" if len(ranks) == 1 else f"{cut(compress(ranks), NAME - 7)} ({len(ranks)})"
    )
    x = LEFT
    for phase in PHASES:
        width = WIDE * _known(one.of(phase)) / most
        if width > 0.3:
            words = f"{phase}: {milliseconds(one.of(phase))}, {one.of(phase) / one.step:.0%} of a step"
            sheet.rect(x, top, width, ROW, colour(COLOURS[phase]), words)
            x += width
    end = LEFT + WIDE * one.step / most
    if end - x > 1:  # phases have medians of their own, which need not add up
        sheet.rect(x, top, end - x, ROW, "none", f"not in these medians: {milliseconds((end - x) * most / WIDE)}")
    sheet.text(max(x, end) + 6, top + 13, milliseconds(one.step), "quiet")


def skew(recording: Recording) -> Picture | None:
    """How much later than the others each rank came to the meetings of its group, step by step."""
    try:
        timing = derived(Timing, recording)
    except NotSeen:
        return None
    late = _lateness(timing)
    if not late:
        return None
    rows = sorted(late.items(), key=lambda one: (-one[1][1], one[0]))[:MOST_ROWS]
    most = max(NARROWEST, *(p95 for _, (_, p95, _) in rows))
    sheet = Sheet(LEFT + WIDE + 120, 30 + (ROW + 4) * len(rows) + 10, "how late each rank comes")
    for tick in ticks(most / 1e6):
        x = LEFT + WIDE * tick * 1e6 / most
        sheet.line([(x, 22), (x, sheet.height - 8)], "grid")
        sheet.text(x, 14, f"{tick:g} ms", "quiet", "middle")
    for number, (rank, (median, p95, share)) in enumerate(rows):
        top = 28 + number * (ROW + 4)
        sheet.text(0, top + 13, f"rank {rank}")
        words = (
            f"rank {rank}: median {milliseconds(median)}, 95 % below {milliseconds(p95)}, last in {share:.0%} of steps"
        )
        sheet.rect(LEFT, top + 6, max(WIDE * p95 / most, 1), 6, "soft k1", words)
        sheet.rect(LEFT, top + 2, max(WIDE * median / most, 1), 14, "k1", words)
        sheet.text(LEFT + WIDE * p95 / most + 6, top + 13, f"last in {share:.0%}", "quiet")
    table = Table(
        "arrivals",
        "how late each rank comes",
        ("rank", "median", "95 %", "comes last"),
        tuple((rank, round(median), round(p95), round(share, 3)) for rank, (median, p95, share) in rows),
        tuple((str(r), milliseconds(m), milliseconds(p), f"{s:.0%}") for r, (m, p, s) in rows),
    )
    caption = (
        "How much later than the middle of the others a rank came to the collectives of a step: what they lost by it."
    )
    return Picture(
        "arrivals", "Whom the others wait for", caption, sheet.done(), table, (("k1", "median"), ("soft k1", "95 %"))
    )


def _lateness(timing: Timing) -> dict[int, tuple[float, float, float]]:
    """rank -> median and 95th percentile of its lateness a step, and in which share of them it came last; of its worst group."""
    found: dict[int, tuple[float, float, float]] = {}
    for arrivals in timing.arrivals:
        by_step = arrivals.lateness()
        if len(by_step) < 4:
            continue
        table = np.stack([by_step[step] for step in sorted(by_step)])
        last = table.argmax(axis=1)
        for place, rank in enumerate(arrivals.ranks):
            mine = table[:, place]
            share = float(np.mean((last == place) & (mine > 0)))
            one = (float(np.median(mine)), float(np.percentile(mine, 95)), share)
            found[rank] = max(found.get(rank, (0.0, 0.0, 0.0)), one)
    return found
