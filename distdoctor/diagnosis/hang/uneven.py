"""Loaders that ran out of batches on some ranks while others went on drawing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from distdoctor.recording.recording import Recording, SourceLine


@dataclass(frozen=True)
class Uneven:
    """One pass over one loader: `batches` by rank, `short` the ranks that were through with fewer than another rank drew.

    `at_ns`: when the first of them ran out, on the wall clock. `site` is the loop, or where the loader was made. `dataset` and
    `samplers` are the names of classes.
    """

    batches: dict[int, int]
    short: tuple[int, ...]
    at_ns: int
    site: SourceLine
    dataset: str = ""
    samplers: tuple[str, ...] = ()


def uneven_passes(recording: Recording) -> list[Uneven]:
    """The passes that were uneven, the earliest first."""
    passes: dict[tuple[str, str, int], dict[int, tuple[int, int, SourceLine]]] = defaultdict(dict)
    classes: dict[tuple[str, str], tuple[str, tuple[str, ...]]] = {}
    for rank, log in recording.ranks.items():
        earlier: dict[tuple[str, str], int] = defaultdict(int)
        for row in log.loader_passes:
            # A loader is the same on two ranks when it was made and looped over on the same lines.
            key = (log.text(int(row["made_site"])), log.text(int(row["loop_site"])) or str(row["loader"]))
            earlier[key] += 1
            dataset = log.text(int(row["dataset"])).partition("\0")[0]
            classes[key] = dataset, tuple(log.text(int(row["sampler"])).split(">"))
            ended = int(row["ended_ns"])
            wall = ended + log.monotonic_to_wall_ns if ended else 0
            site = log.site(row["loop_site"]) or log.site(row["made_site"])
            passes[(*key, earlier[key])][rank] = (int(row["batches"]), wall, site)
    found = []
    for (made, loop, _), by_rank in passes.items():
        most = max(batches for batches, _, _ in by_rank.values())
        short = {rank: ended for rank, (batches, ended, _) in by_rank.items() if ended and batches < most}
        if short:
            site = by_rank[min(short)][2]
            batches = {rank: count for rank, (count, _, _) in sorted(by_rank.items())}
            found.append(Uneven(batches, tuple(sorted(short)), min(short.values()), site, *classes[made, loop]))
    return sorted(found, key=lambda uneven: uneven.at_ns)


def find_uneven_pass(passes: Iterable[Uneven], ranks: Iterable[int], at_ns: int) -> Uneven | None:
    """The uneven pass because of which these ranks parted from the others at that time: they ran out before."""
    odd = set(ranks)
    for uneven in passes:
        blamed = set(uneven.short) & odd
        if blamed and uneven.at_ns <= at_ns and set(uneven.short) <= odd:
            return uneven
    return None
