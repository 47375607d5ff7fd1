"""Where ranks parted before anything showed it: calls of equal size that one of them issued from another line.

A rank that leaves out, or adds, a sum of one number is answered by the next sum of one number. Sizes that disagree come later.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from distdoctor.diagnosis.alignment import OPERATION, Divergence, Variant
from distdoctor.diagnosis.program import Program, symbol
from distdoctor.diagnosis.rank_guard import statement_at
from distdoctor.recording.recording import Call, Site

FURTHEST = 8  # calls back; a routine in which lines differ between ranks all the time has no such beginning
_JOIN = re.compile(r"^\s*with\b.*\b[Jj]oin\(")


def where_lines_part(parted: Divergence) -> Divergence:
    """The divergence at the first of the equal calls before it whose lines differ, where one side alone left its own routine."""
    if len(parted.variants) != 2:
        return parted
    first = parted
    for moved in _before(parted, FURTHEST):
        if moved.variants[0].call.site == moved.variants[1].call.site:
            break
        first = moved
    usual, odd = first.variants
    if first is parted or not all(len({call.site for call in variant.calls}) == 1 for variant in first.variants):
        return parted
    strays = [_strays(parted, mine.call, other.call) for mine, other in ((usual, odd), (odd, usual))]
    return first if strays == [False, True] or (parted.is_tie and strays == [True, False]) else parted


def _strays(parted: Divergence, mine: Call, other: Call) -> bool:
    """Whether a rank always issued what the other side did at this point, and this time something else."""
    expected = Program.of(parted.group.tracks[mine.rank].timeline, mine.seq).expected()
    return expected is not None and expected == symbol(other) != symbol(mine)


def not_joined(parted: Divergence, sources: Mapping[str, str]) -> tuple[Divergence, Variant, Variant] | None:
    """(where, who issued, who answered): the first call of the user's own that met one of `with model.join()`.

    join() stands in for the reductions of its model; any other collective inside the block is answered by one of those.
    """
    found = None
    for moved in (parted, *_before(parted, 1 << 16)):
        for mine, other in (moved.variants, moved.variants[::-1]) if len(moved.variants) == 2 else ():
            line = statement_at(sources.get(mine.call.site.path, ""), mine.call.site.line)
            if is_join(sources, other.call.site) and f"{mine.call.op.word}(" in line:
                found = moved, mine, other
        if not any(is_join(sources, variant.call.site) for variant in moved.variants):
            break
    return found


def is_join(sources: Mapping[str, str], site: Site) -> bool:
    """Whether the line is that of a `with model.join():` or `with Join([...]):`."""
    lines = sources.get(site.path, "").splitlines()
    return 0 < site.line <= len(lines) and bool(_JOIN.match(lines[site.line - 1]))


def _before(parted: Divergence, furthest: int) -> Iterator[Divergence]:
    """The same variants at the numbers before, backwards, as far as every rank remembers."""
    tracks = parted.group.tracks
    for number in range(parted.number - 1, max(0, parted.number - 1 - furthest), -1):
        calls = [[tracks[call.rank].call(number) for call in variant.calls] for variant in parted.variants]
        whole = [tuple(call for call in variant if call is not None) for variant in calls]
        if any(len(w) < len(v.calls) for w, v in zip(whole, parted.variants, strict=True)):
            return
        entered = [min(tracks[c.rank].timeline.wall(c.entered_ns) for c in variant) for variant in whole]
        yield replace(
            parted,
            number=number,
            variants=tuple(Variant(variant) for variant in whole),
            differs=OPERATION,
            at_ns=sorted(entered)[1],
        )
