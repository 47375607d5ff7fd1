"""The table that `distdoctor watch` keeps up to date: one line a rank, and below it whom the others wait for."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

from distdoctor.diagnosis.speed.progress_now import ProgressNow, RankProgress
from distdoctor.recording.rank_set import compress, named
from distdoctor.report.table import Table, milliseconds

MOST_RANKS = 16  # shown one by one; of more, equal ones share a line
WORTH_TELLING_SECONDS = 1.0  # a wait shorter than this is what every step has


def live_table(now: ProgressNow, most: int = MOST_RANKS) -> Table:
    """Steps, speed, memory and the call that each rank is in, in `most` lines."""
    together = _together(now.ranks)[:most] if len(now.ranks) > most else [[one] for one in now.ranks]
    rows = [_row(ranks) for ranks in together]
    longest = max((one.seconds for one in now.ranks if one.awaits), default=0.0)
    notes: tuple[str, ...] = ()
    if now.awaited and longest >= WORTH_TELLING_SECONDS:
        notes = (f"waiting for {named(now.awaited)} for {longest:.0f} s",)
    return Table("live", "", ("rank", "step", "step time", "samples/s", "memory", "in"), tuple(rows), notes=notes)


def _together(ranks: Sequence[RankProgress]) -> list[list[RankProgress]]:
    """Ranks at the same step in the same call."""
    found: dict[object, list[RankProgress]] = {}
    for one in ranks:
        where = (one.call.words, one.call.site, one.in_call) if one.call else None
        found.setdefault((one.step, where), []).append(one)
    return sorted(found.values(), key=lambda group: (group[0].step, len(group)))


def _row(ranks: Sequence[RankProgress]) -> tuple[str, ...]:
    """The ranks that share a line, with the slowest step and the most memory among them."""
    first = ranks[0]
    speed = max((one.step_seconds for one in ranks if not math.isnan(one.step_seconds)), default=math.nan)
    samples = [one.samples_per_second for one in ranks if not math.isnan(one.samples_per_second)]
    memory = max(one.memory for one in ranks)
    return (
        compress([one.rank for one in ranks]),
        str(first.step),
        milliseconds(speed * 1e9),
        f"{sum(samples):.0f}" if samples else "-",
        f"{memory / 2**20:,.0f} MiB" if memory else "-",
        _doing(first),
    )


def _doing(one: RankProgress) -> str:
    """`all_reduce #128 at train.py:41 for 3.2 s`, or the call that it has left behind: a narrow terminal cuts off the seconds."""
    if one.call is None:
        return "-"
    site = one.call.site
    place = f" at {os.path.basename(site.path)}:{site.line}" if site.path else ""
    if one.in_call:
        return f"{one.call.words}{place} for {one.seconds:.1f} s"
    return f"past {one.call.words}{place} for {one.seconds:.1f} s" if one.seconds else f"past {one.call.words}{place}"
