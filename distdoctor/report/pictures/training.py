"""How the training went: which layers part on which ranks, memory over time, loss and gradient norms."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from markupsafe import Markup

from distdoctor.diagnosis.check import NotSeen
from distdoctor.diagnosis.derived import derived
from distdoctor.diagnosis.memory.budget import Relief, savings
from distdoctor.diagnosis.memory.memory import Memory, RankMemory, mib
from distdoctor.diagnosis.rank_groups import variants_of_sets
from distdoctor.diagnosis.replicas.gradients import Gradients, ReplicaGroup
from distdoctor.diagnosis.replicas.rank_gradients import Update
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Recording
from distdoctor.recording.trace.layout import DigestFlag, TensorFlag
from distdoctor.report.pictures.drawing import LETTER, MOST_VIEWS, Picture, Sheet, View, colour, cut, cut_front, ticks
from distdoctor.report.printable import one_line
from distdoctor.report.table import Table

WIDE, HIGH, LEFT = 640.0, 170.0, 74.0
MOST_DOTS = 100  # of a line: with more it is one
MOSTLY = 0.8
MOST_LAYERS, MOST_SINGLE, MOST_COLUMNS = 30, 16, 32
MOST_MARKS = 4000  # of all maps together: a page stays small
TAKEN_OFF = "k5"  # no category has that colour
WORTH_IT = 0.01  # of what is drawn: less is no remedy
HELD = {"parameters": "parameters", "gradients": "gradients", "state": "optimizer state", "buffers": "buffers"}
Point = tuple[float, float]


# --- which layers part ---------------------------------------------------------------------------------------------------


def divergence(recording: Recording) -> Picture | None:
    """Layers x ranks, at the first step that was looked at, where they part and later: who holds the same bits as whom."""
    gradients = _gradients(recording)
    if gradients is None or not gradients.peers:
        return None
    maps = [(peers, found) for peers in gradients.peers if (found := _variants(recording, gradients, peers))]
    if not maps:
        return None
    peers, steps = max(maps, key=lambda one: _first_parted(one[1]) is not None)
    parted = _first_parted(steps)
    ranks = [rank for rank in peers.ranks if rank in gradients.ranks]
    chosen = _telling(steps, most=MOST_VIEWS)
    columns = _columns(ranks, chosen, steps)
    chosen = _telling(steps, most=max(2, MOST_MARKS // (len(columns) * len(_layers(steps, chosen)))))
    if parted is None:  # every step looks alike, so the last one says it all
        chosen = chosen[-1:]
    layers = _alike(_layers(steps, chosen), chosen, steps)
    views = tuple(_map_of(step, layers, columns, steps[step]) for step in chosen)
    versions = max((len(variants) for step in chosen for variants in steps[step].values()), default=1)
    title = "All layers are the same on all replicas"
    if any(_has_nan([one for one in gradients.ranks[rank].updates if one.step in chosen]) for rank in ranks):
        title = "The replicas do not differ, but what they hold is not finite"
    if parted is not None:
        since = (
            f"from step {parted} on" if parted > min(steps) or parted < 2 else f"at step {parted}, the oldest on record"
        )
        title = f"Which layers differ between the replicas, in gradient or parameter, {since}"
    return Picture(
        "divergence",
        title,
        f"{_by_step(views)}{len(peers.ranks)} replicas from left to right{_LETTERS if parted is not None else ''}. "
        "Layers that look alike are one row, and of many ranks those that agree one column.",
        views[chosen.index(parted) if parted in chosen else -1].svg,
        Table(
            "divergence",
            "ranks with equal gradients and parameters, by layer and step",
            ("step", "layer", "ranks that agree"),
            tuple(
                (step, _named(names), " | ".join(map(named, steps[step][names[0]])))
                for step in chosen
                for names in layers
                if names[0] in steps[step]
            ),
        ),
        _VERSIONS[:versions] if versions > 1 else (),
        views if len(views) > 1 else (),
        "Step",
    )


_LETTERS = "; those with the same letter hold the same bits, A those of the most ranks if there are such"
_VERSIONS = (("soft k5", "version A"), ("soft k4", "version B"), ("soft k3", "further versions"))


def _by_step(views: Sequence[View]) -> str:
    return "One step at a time; the arrow keys go through them. " if len(views) > 1 else ""


Parted = tuple[tuple[int, ...], ...]  # the ranks that hold the same bits, the most numerous first
Variants = dict[int, dict[str, Parted]]


def _first_parted(steps: Variants) -> int | None:
    parted = (step for step, layers in steps.items() if any(len(variants) > 1 for variants in layers.values()))
    return min(parted, default=None)


def _alike(names: Sequence[str], chosen: Sequence[int], steps: Variants) -> list[list[str]]:
    """Runs of layers that differ in the same way in every chosen step; those that differ stand alone."""
    rows: list[list[str]] = []
    for name in names:
        mine = [steps[step].get(name) for step in chosen]
        odd = any(variants is not None and len(variants) > 1 for variants in mine)
        if rows and not odd and [steps[step].get(rows[-1][0]) for step in chosen] == mine:
            rows[-1].append(name)
        else:
            rows.append([name])
    return rows


def _named(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} … {names[-1]} ({len(names)})"


def _gradients(recording: Recording) -> Gradients | None:
    try:
        return derived(Gradients, recording) if "gradients" in recording.streams else None
    except NotSeen:
        return None


def _variants(recording: Recording, gradients: Gradients, peers: ReplicaGroup) -> Variants:
    """step -> parameter -> the ranks that hold the same bits of it and of its gradient, the most numerous first."""
    found: Variants = {}
    ranks = [rank for rank in peers.ranks if rank in gradients.ranks]
    steps = _looked_at_by_all(recording, gradients, peers)
    unreadable = int(DigestFlag.UNREADABLE)  # this is asked of every tensor, and & of an enum makes another
    for step in [*steps[:24], *steps[24:][-8:]]:
        rows = {
            alike: gradients.ranks[alike[0]].digests(step, peers.optimizer)
            for alike in _equal(gradients, ranks, step, peers)
        }
        for name in dict.fromkeys(name for row in rows.values() for name in row):
            values = {
                alike: (int(row[name]["grad"]) if step else 0, int(row[name]["param"]))
                for alike, row in rows.items()
                if name in row and not int(row[name]["flags"]) & unreadable
            }
            info = gradients.ranks[ranks[0]].info(name, peers.optimizer)
            if sum(map(len, values)) > 1 and (info is None or not info.flags & TensorFlag.BUFFER):
                found.setdefault(step, {})[name] = variants_of_sets(values)
    return found


def _looked_at_by_all(recording: Recording, gradients: Gradients, peers: ReplicaGroup) -> list[int]:
    """The steps that were looked at on every rank that made them; where there is none, those that any rank looked at."""
    looked = {rank: {u.step for u in found if u.digested} for rank, found in gradients.updates(peers).items()}
    last = {rank: max(recording.ranks[rank].steps["step"], default=0) for rank in looked if rank in recording.ranks}
    every = sorted(set().union(*looked.values()))
    together = [step for step in every if all(step in looked[rank] or step > last.get(rank, 0) for rank in looked)]
    return together or every


def _equal(gradients: Gradients, ranks: Sequence[int], step: int, peers: ReplicaGroup) -> list[tuple[int, ...]]:
    """Ranks that hold the same in every tensor of a step: one is looked at for all of them."""
    found: dict[object, list[int]] = {}
    for rank in ranks:
        names, rows = gradients.ranks[rank].held(step, peers.optimizer)
        key = names, *(rows[column].tobytes() for column in ("flags", "grad", "param"))
        found.setdefault(key, []).append(rank)
    return [tuple(alike) for alike in found.values()]


def _telling(steps: Variants, most: int) -> list[int]:
    """At most so many steps: the first, the last that agrees, the first that differs, the last, and as many others as fit."""
    every = sorted(steps)
    parted = [step for step in every if any(len(variants) > 1 for variants in steps[step].values())]
    before = [step for step in every if parted and step < parted[0]]
    wanted = [*parted[:1], every[-1], *before[-1:], every[0], *parted[1:8], *every]
    return sorted(list(dict.fromkeys(wanted))[: min(most, MOST_VIEWS)])


def _columns(ranks: Sequence[int], chosen: Sequence[int], steps: Variants) -> list[list[int]]:
    """Every rank by itself; where there are many, those that agree with the same others all along are one column."""
    if len(ranks) <= MOST_SINGLE:
        return [[rank] for rank in ranks]
    found: dict[tuple[int | None, ...], list[int]] = {}
    every = dict.fromkeys(variants for step in chosen for variants in steps[step].values())
    parted = [variants for variants in every if len(variants[0]) < len(ranks)]
    places = [{rank: number for number, alike in enumerate(variants) for rank in alike} for variants in parted]
    for rank in ranks:
        found.setdefault(tuple(place.get(rank) for place in places), []).append(rank)
    return sorted(found.values(), key=lambda column: (-len(column), column))[:MOST_COLUMNS]


def _layers(steps: Variants, chosen: Sequence[int]) -> list[str]:
    """In the order of the model; where there are too many, those that differ and the first others."""
    names = list(dict.fromkeys(name for step in chosen for name in steps[step]))
    if len(names) <= MOST_LAYERS:
        return names
    odd = [name for name in names if any(len(steps[step].get(name, ())) > 1 for step in chosen)]
    kept = set([*odd, *(name for name in names if name not in odd)][:MOST_LAYERS])
    return [name for name in names if name in kept]


def _map_of(
    step: int, layers: Sequence[Sequence[str]], columns: Sequence[Sequence[int]], variants: dict[str, Parted]
) -> View:
    """Layers from top to bottom, ranks from left to right, at one step."""
    names = [one_line(_named(one)) for one in layers]
    heads = [cut(named(column), 16) if len(column) > 1 else str(column[0]) for column in columns]
    words = f"step {step}" if step else "the start"
    left = min(44, max(map(len, names))) * LETTER + 12
    cell = max(22.0, max(map(len, heads)) * LETTER + 8)
    sheet = Sheet(left + max(cell * len(columns), 60) + 10, 30 + 17 * len(layers), f"layers by rank at {words}")
    for line, name in enumerate(names):
        sheet.text(0, 40 + 17 * line, cut_front(name, 44))
    for number, column in enumerate(columns):
        x = left + cell * number
        sheet.text(x + cell / 2, 18, heads[number], "quiet", "middle")
        for line, one in enumerate(layers):
            _draw_variant(sheet, x, 28 + 17 * line, cell, column[0], variants.get(one[0], ()), names[line])
    return View(str(step) if step else "start", sheet.done(), any(len(one) > 1 for one in variants.values()))


def _draw_variant(
    sheet: Sheet, x: float, y: float, cell: float, rank: int, variants: tuple[tuple[int, ...], ...], name: str
) -> None:
    which = next((number for number, variant in enumerate(variants) if rank in variant), None)
    if which is None:
        sheet.rect(x, y, cell - 2, 15, "none", f"rank {rank}, {name}: not compared")
        return
    kind = ("soft k5", "soft k4", "soft k3")[min(which, 2)]
    words = f"rank {rank}, {name}: " + ("as most" if which == 0 else "different") + f", with {named(variants[which])}"
    sheet.rect(x, y, cell - 2, 15, kind, words)
    if len(variants) > 1:
        sheet.text(x + (cell - 2) / 2, y + 12, chr(ord("A") + min(which, 25)), "", "middle")


# --- memory --------------------------------------------------------------------------------------------------------------


def memory(recording: Recording) -> Picture | None:
    """The fullest rank's memory over its steps, by what it holds."""
    try:
        ranks = (
            [one for one in derived(Memory, recording).each() if len(one.rows) > 1]
            if "memory" in recording.streams
            else []
        )
    except NotSeen:
        return None
    if not ranks:
        return None
    one = max(ranks, key=lambda rank: rank.peak)
    before = one.before_training  # the same at every step, and often more than all else: said, not drawn
    total = (one.column("allocated" if one.on_device else "rss") - before).clip(min=0)
    layers = {words: one.column(name) for name, words in HELD.items()}
    known = sum(layers.values())
    layers["activations and all else"] = (total - known).clip(min=0)
    layers = {words: values for words, values in layers.items() if max(values) > 0}
    steps = [float(step) for step in one.steps]
    most = max(float(max(total)), float(max(total * 0 + known)))  # what was never touched is held, and not resident
    sheet, across, up = _axes(steps, most, "memory by step", mib, unit=2.0**20)
    base = [0.0] * len(steps)
    for number, (words, values) in enumerate(layers.items()):
        above = [low + float(value) for low, value in zip(base, values, strict=True)]
        outline = [(across(s), up(v)) for s, v in zip(steps, above, strict=True)]
        below = [(across(s), up(v)) for s, v in zip(steps, base, strict=True)]
        sheet.area([*outline, *below[::-1]], f"{colour(number)} layer", f"{words}: at most {mib(float(max(values)))}")
        base = above
    reliefs = [relief for relief in savings(one, len(ranks)) if relief.bytes >= WORTH_IT * most]
    where = "on its device" if one.on_device else "of resident memory"
    libraries = f", {mib(before)} of it libraries and data from before training, not drawn here" if before else ""
    return Picture(
        "memory",
        "Memory over the steps, by what it holds",
        f"Rank {one.rank}, the fullest: at most {mib(one.peak)} {where}{libraries}. {_growth(one)}".rstrip()
        + (" Below: what each remedy would take off, by what was measured; sums, no promises." if reliefs else ""),
        Markup("").join((sheet.done(), _reliefs(reliefs, most))) if reliefs else sheet.done(),
        Table(
            "memory",
            "memory by rank at its highest, bytes",
            ("rank", "peak", *HELD.values()),
            tuple((rank.rank, rank.peak, *(rank.most(name) for name in HELD)) for rank in ranks),
            tuple((str(rank.rank), mib(rank.peak), *(mib(rank.most(name)) for name in HELD)) for rank in ranks),
            tuple(f"{relief.remedy}, rank {one.rank}: {relief}" for relief in reliefs),
        ),
        (
            *((colour(number), words) for number, words in enumerate(layers)),
            *([(TAKEN_OFF, "would be taken off")] if reliefs else []),
        ),
    )


def _reliefs(reliefs: Sequence[Relief], drawn: float) -> Markup:
    """A bar for each remedy, as long as what it would take off of the `drawn` bytes, which are the whole width."""
    sheet = Sheet(LEFT + WIDE + 110, 24 + 34 * len(reliefs), "what remedies would take off")
    sheet.text(LEFT, 12, f"what remedies would take off of {mib(drawn)}", "strong")
    for line, relief in enumerate(reliefs):
        top = 22.0 + 34 * line
        sheet.text(LEFT, top + 11, cut(f"{relief.words}: {relief.limit} {mib(relief.bytes)}, {relief.about}", 110))
        sheet.rect(LEFT, top + 16, WIDE, 9, "none", mib(drawn))
        sheet.rect(LEFT, top + 16, min(WIDE * relief.bytes / drawn, WIDE), 9, TAKEN_OFF, str(relief))
    return sheet.done()


def _growth(one: RankMemory) -> str:
    rate, _ = one.growth()
    return f"It grows by {mib(rate)} a step." if rate >= 64 * 1024 else ""


# --- loss and gradient norm ------------------------------------------------------------------------------------------------


def loss(recording: Recording) -> Picture | None:
    """The loss and the norm of the gradients, one line for ranks with equal numbers."""
    gradients = _gradients(recording)
    if gradients is None:
        return None
    losses, norms = _series(gradients, "loss"), _series(gradients, "norm")
    shown = {words: lines for words, lines in (("loss", losses), ("gradient norm", norms)) if lines}
    if not shown:
        return None
    parts = [_plot(words, lines) for words, lines in shown.items()]
    rows = tuple(
        (words, named(ranks), len(points), points[0][1], points[-1][1])
        for words, lines in shown.items()
        for points, ranks in lines
    )
    return Picture(
        "loss",
        "Loss and gradient norm",
        "One line for each rank, or for ranks with the same numbers; dots are steps on record, crosses were not finite.",
        Markup("").join(parts),
        Table(
            "loss",
            "loss and gradient norm",
            ("what", "ranks", "steps", "first", "last"),
            rows,
            tuple((what, who, str(count), f"{first:.4g}", f"{last:.4g}") for what, who, count, first, last in rows),
        ),
    )


def _series(gradients: Gradients, name: str) -> list[tuple[list[Point], list[int]]]:
    """The values of one number by step, ranks with equal values together; the first optimizer's."""
    by_rank: dict[int, tuple[Point, ...]] = {}
    for rank, one in sorted(gradients.ranks.items()):
        updates = [u for u in one.updates if u.optimizer == one.updates[0].optimizer and u.step] if one.updates else []
        points = tuple((float(u.step), u.value(name)) for u in updates if not (name == "norm" and u.value(name) < 0))
        points = tuple(p for p in points if name != "loss" or not math.isnan(p[1]) or _has_nan(updates))
        if sum(math.isfinite(value) for _, value in points) > 1:
            by_rank[rank] = points
    found: dict[tuple[Point, ...], list[int]] = {}
    for rank, points in _on_common_steps(by_rank).items():
        found.setdefault(points, []).append(rank)
    rows = sorted(found.items(), key=lambda row: (-len(row[1]), row[1]))[:8]
    return [(_thinned(list(points)), ranks) for points, ranks in rows]


def _on_common_steps(by_rank: dict[int, tuple[Point, ...]]) -> dict[int, tuple[Point, ...]]:
    """Without the few steps that some ranks still remember and others do not: their numbers would be no difference."""
    common = set.intersection(*({step for step, _ in points} for points in by_rank.values())) if by_rank else set()
    if len(common) < max(2, MOSTLY * max(map(len, by_rank.values()), default=0)):
        return by_rank
    return {rank: tuple(point for point in points if point[0] in common) for rank, points in by_rank.items()}


def _has_nan(updates: Sequence[Update]) -> bool:
    return any(update.number("non_finite") for update in updates)


def _thinned(points: list[Point], most: int = 600) -> list[Point]:
    every = max(1, -(-len(points) // most))
    return points if every == 1 else [*points[:-1:every], points[-1]]


def _plot(words: str, lines: list[tuple[list[Point], list[int]]]) -> Markup:
    finite = [value for points, _ in lines for _, value in points if math.isfinite(value)]
    steps = sorted({step for points, _ in lines for step, _ in points})
    sheet, across, up = _axes(
        steps, max(*finite, 0.0), f"{words} by step", lambda value: f"{value:.3g}", min(*finite, 0.0)
    )
    sheet.text(LEFT, 12, words, "strong")
    ends = []
    for number, (points, ranks) in enumerate(lines):
        good = [(across(step), up(value)) for step, value in points if math.isfinite(value)]
        sheet.line(good, f"curve s{number % 8}", f"{words} of {named(ranks)}")
        for x, y in good if len(good) <= MOST_DOTS else ():
            sheet.rect(x - 1.5, y - 1.5, 3, 3, colour(number))
        for step, value in points:
            if not math.isfinite(value):
                sheet.text(across(step), HIGH + 18, "✕", "error", "middle")
        ends += [(good[-1][1], good[-1][0], cut(named(ranks), 16))] if good else []
    ends.sort()
    for y, (_, x, name) in zip(_apart([end[0] for end in ends]), ends, strict=True):
        sheet.text(x + 5, y + 4, name, "quiet")
    return sheet.done()


def _apart(wanted: Sequence[float], between: float = 12.0) -> list[float]:
    """Heights of labels, one below the other where the lines end close together, and none below the axis."""
    found: list[float] = []
    for y in wanted:
        found.append(max(y, found[-1] + between) if found else y)
    bottom = HIGH + 20
    for number in reversed(range(len(found))):
        found[number] = min(found[number], bottom)
        bottom = found[number] - between
    return found


def _axes(
    steps: Sequence[float],
    most: float,
    label: str,
    words: Callable[[float], str],
    least: float = 0.0,
    unit: float = 1.0,
) -> tuple[Sheet, Callable[[float], float], Callable[[float], float]]:
    """A sheet with axes: steps from left to right, values upwards; and how a step and a value become pixels."""
    first, last = (steps[0], steps[-1]) if steps else (0.0, 1.0)
    span, range_ = max(last - first, 1.0), most - least if most - least > 1e-12 else unit
    sheet = Sheet(LEFT + WIDE + 110, HIGH + 46, label)

    def across(step: float) -> float:
        return LEFT + WIDE * (step - first) / span

    def up(value: float) -> float:
        return 20 + HIGH - HIGH * (value - least) / range_

    for tick in (unit * one for one in ticks(range_ / unit)):
        y = up(least + tick)
        sheet.line([(LEFT, y), (LEFT + WIDE, y)], "grid")
        sheet.text(LEFT - 6, y + 4, words(least + tick), "quiet", "end")
    for step in sorted({round(first + span * number / 4) for number in range(5)}):
        sheet.text(across(step), HIGH + 38, f"step {step}", "quiet", "middle")
    return sheet, across, up
