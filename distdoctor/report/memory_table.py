"""The verdict on memory: the peak and what it is made of, rank by rank, who keeps it, what grows, and whether it fits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from distdoctor.diagnosis.check import NotSeen
from distdoctor.diagnosis.memory.budget import savings
from distdoctor.diagnosis.memory.memory import Holder, Memory, RankMemory, grows_steadily, mib, slope
from distdoctor.diagnosis.source.keeping_line import keeping_line
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Recording, SourceLine

ROWS = 10
CATEGORIES = {"parameters": "parameters", "gradients": "gradients", "state": "optimizer state", "buffers": "buffers"}


def fits(recording: Recording, budget: int) -> bool | None:
    """Whether the fullest rank stays within so many bytes; None when nothing was measured."""
    try:
        return max(rank.peak for rank in Memory.of(recording).each()) <= budget
    except NotSeen:
        return None


def render(recording: Recording, budget: int = 0) -> str:
    """The verdict as text, the answer in its first line."""
    try:
        memory = Memory.of(recording)
    except NotSeen as reason:
        return f"no verdict on memory: {reason}\n"
    ranks = list(memory.each())
    blocks = [
        "\n".join(_answer(memory, ranks, budget)),
        _table(ranks),
        "\n".join(_phases(ranks)),
        "\n".join(_modules(ranks)),
        "\n".join(_cures(ranks, budget)),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _answer(memory: Memory, ranks: Sequence[RankMemory], budget: int) -> Iterator[str]:
    fullest = max(ranks, key=lambda rank: rank.peak)
    peak = fullest.peak
    where = "on its device" if fullest.on_device else "of resident memory"
    line = f"rank {fullest.rank} needs most: {mib(peak)} {where}"
    if budget:
        left = budget - peak
        line += f", {'fits into' if left >= 0 else 'does NOT fit into'} {mib(budget)}: {mib(abs(left))} "
        line += "to spare" if left >= 0 else "too much"
    growing = list(_growing(memory, ranks))
    yield f"{line}; {growing[0][0] if growing else 'nothing was seen to grow'}"
    yield from (f"  grows   {text}" for _, text in growing)


def _growing(memory: Memory, ranks: Sequence[RankMemory]) -> Iterator[tuple[str, str]]:
    """What grows in a few words, and with its numbers."""
    found: dict[tuple[str, str, str], list[Holder]] = {}
    for rank in ranks:
        for holder in rank.holders:
            if holder.graph_growth or (holder.plain_growth and holder.per_step(holder.plain_growth) >= 1024):
                found.setdefault(holder.key, []).append(holder)
    for holders in found.values():
        one = holders[0]
        looks = one.graph_growth or one.plain_growth
        keeping = keeping_line(memory.recording.sources, one.site, one.label)
        if keeping is None and one.graph_growth and len(found) > 1:
            continue  # it only sees the graph that another variable keeps
        size = mib(one.per_step(looks))
        nodes = slope([look.step for look in looks], [look.nodes for look in looks])
        graph = f" and {nodes:.0f} operations" if one.graph_growth else ""
        place = _place(keeping.site if keeping else one.site)
        yield (
            f"`{one.label}` grows, {place}",
            f"`{one.label}` by {size}{graph} a step, {named([h.rank for h in holders])}, {place}",
        )
    for rank in ranks:
        name = "allocated" if rank.on_device else "rss"
        late = slice(len(rank.rows) // 3, None)
        steps, values = rank.steps[late], rank.column(name)[late]
        rate = slope(steps, values)
        if len(steps) >= 24 and rate >= 64 * 1024 and grows_steadily(steps, values):
            what = "allocated memory" if rank.on_device else "resident memory"
            yield (
                f"{what} grows, and no variable was seen to hold it",
                f"{what} of rank {rank.rank} by {mib(rate)} a step, over the last {len(steps)} that were measured",
            )


def _table(ranks: Sequence[RankMemory]) -> str:
    head = ["rank", "peak", *CATEGORIES.values(), "activations", "buckets", "libraries, data", "other"]
    rows = [head]
    for rank in ranks:
        held = [rank.most(name) for name in CATEGORIES]
        activations = sum(size for size, *_ in rank.saved())
        before = rank.before_training
        known = sum(held) + activations + rank.buckets() + before
        other = rank.peak - known
        cells = [*held, activations, rank.buckets(), before]
        rows.append([str(rank.rank), mib(rank.peak), *map(_cell, cells), mib(other) if other >= 0 else "-"])
    keep = [n for n in range(len(head)) if n < 2 or any(row[n] != "-" for row in rows[1:])]
    widths = {n: max(len(row[n]) for row in rows) for n in keep}
    return "\n".join("  ".join(row[n].rjust(widths[n]) for n in keep) for row in rows)


def _cell(size: int) -> str:
    return mib(size) if size else "-"


def _phases(ranks: Sequence[RankMemory]) -> Iterator[str]:
    for rank in ranks[:1]:
        peaks = rank.phase_peaks()
        if peaks:
            yield f"peaks of rank {rank.rank}: " + ", ".join(
                f"{phase.word} {mib(size)}" for phase, size in peaks.items()
            )


def _modules(ranks: Sequence[RankMemory]) -> Iterator[str]:
    fullest = max(ranks, key=lambda rank: sum(size for size, *_ in rank.saved()))
    saved = fullest.saved()
    if not saved:
        return
    total = sum(size for size, *_ in saved)
    yield f"kept for backward on rank {fullest.rank}: {mib(total)}"
    width = max(len(_name(path, owner)) for _, path, owner, _ in saved[:ROWS])
    for size, path, owner, site in saved[:ROWS]:
        yield f"  {mib(size):>10}  {_name(path, owner):{width}}  {_place(site)}"
    if len(saved) > ROWS:
        yield f"  {mib(sum(size for size, *_ in saved[ROWS:])):>10}  {len(saved) - ROWS} more"


def _name(path: str, owner: str) -> str:
    return f"{path} ({owner})" if owner and owner != path else path


def _place(site: SourceLine) -> str:
    if not site:
        return ""
    name = site.path.rpartition("/")[2]
    return f"{name}:{site.line} {site.function}" if site.line else f"a global of {name}"


def _cures(ranks: Sequence[RankMemory], budget: int) -> Iterator[str]:
    """What would make it fit, by what was measured. Sums, no promises: `advise` predicts and tries them."""
    fullest = max(ranks, key=lambda rank: rank.peak)
    over = fullest.peak - budget
    if not budget or over <= 0:
        return
    yield f"to save {mib(over)}:"
    for saving in savings(fullest, len(ranks)):
        yield f"  {saving}"
