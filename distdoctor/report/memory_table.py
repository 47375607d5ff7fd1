"""The verdict on memory: the peak and what it is made of, rank by rank, who keeps it, what grows, and whether it fits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from distdoctor.diagnosis.check import NotSeen
from distdoctor.diagnosis.derived import derived
from distdoctor.diagnosis.finding import Finding
from distdoctor.diagnosis.memory.budget import savings
from distdoctor.diagnosis.memory.memory import Memory, RankMemory, mib
from distdoctor.recording.recording import Recording, SourceLine

ROWS = 10
CATEGORIES = {"parameters": "parameters", "gradients": "gradients", "state": "optimizer state", "buffers": "buffers"}


def fits(recording: Recording, budget: int) -> bool | None:
    """Whether the fullest rank stays within so many bytes; None when nothing was measured."""
    try:
        return max(rank.peak for rank in derived(Memory, recording).each()) <= budget
    except NotSeen:
        return None


def render(recording: Recording, budget: int = 0, findings: Iterable[Finding] = ()) -> str:
    """The verdict as text, the answer in its first line. `findings`: those of the checks on memory."""
    try:
        memory = derived(Memory, recording)
    except NotSeen as reason:
        return f"no verdict on memory: {reason}\n"
    ranks = list(memory.each())
    blocks = [
        "\n".join(_answer(ranks, budget, findings)),
        _table(ranks),
        "\n".join(_phases(ranks)),
        "\n".join(_modules(ranks)),
        "\n".join(_cures(ranks, budget)),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _answer(ranks: Sequence[RankMemory], budget: int, findings: Iterable[Finding]) -> Iterator[str]:
    fullest = max(ranks, key=lambda rank: rank.peak)
    peak = fullest.peak
    where = "on its device" if fullest.on_device else "of resident memory"
    line = f"rank {fullest.rank} needs most: {mib(peak)} {where}"
    if budget:
        left = budget - peak
        line += f", {'fits into' if left >= 0 else 'does NOT fit into'} {mib(budget)}: {mib(abs(left))} "
        line += "to spare" if left >= 0 else "too much"
    growing = _growing(findings)
    yield f"{line}; {_grows(growing[0]) if growing else 'nothing was found to grow'}"
    yield from (f"  grows   {_grows(one)}, {one.ranks_named}" for one in growing)


def _grows(finding: Finding) -> str:
    where = _place(finding.place)
    return f"{finding.title}, {where}" if where else finding.title


def _growing(findings: Iterable[Finding]) -> list[Finding]:
    """The findings about something that grows."""
    return [one for one in findings if one.evidence.get("bytes_per_step") or one.evidence.get("operations")]


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
