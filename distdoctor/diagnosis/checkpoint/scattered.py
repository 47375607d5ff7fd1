"""Parts of one checkpoint in folders that each rank has named by itself: by its clock, or by a UUID.

How it is known: at one step the same line saved on several ranks, into files that bear the rank's number, below folders whose
names differ in nothing but what each process has of its own. Ranks that call no collective together are jobs of their own.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import PurePosixPath

from distdoctor.diagnosis.checkpoint.checkpoints import FAILED, Checkpoints, Saved
from distdoctor.recording.recording import SourceLine

CLOCK, RANDOM = "its own clock", "a random word of its own"
APART_S = 3600  # at most, between the clocks that two ranks read before one save
_DAY_S = 86_400
_DATE = r"(?:20\d\d[-_.]?\d\d[-_.]?\d\d[-_.T ]{0,2})?"
_TIME = re.compile(rf"(?<!\d){_DATE}([01]\d|2[0-3])([-_.:]?)([0-5]\d)\2([0-5]\d)(?!\d)")
_EPOCH = re.compile(r"(?<!\d)(1\d{9})(?:\.?\d{3,9})?(?!\d)")  # seconds since 1970, from 2001 to 2033
_RANDOM = re.compile(r"[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}")  # a UUID


@dataclass(frozen=True)
class Scattered:
    """The saves of one line at one step, by rank. `named_by`: what the folders' names differ in."""

    site: SourceLine
    saves: Mapping[int, Saved]
    named_by: str

    @property
    def folders(self) -> dict[int, str]:
        """The folder of each rank."""
        return {rank: str(PurePosixPath(save.event.path).parent) for rank, save in self.saves.items()}


def scattered(checkpoints: Checkpoints) -> Iterator[Scattered]:
    """The first such save of each line."""
    rounds: dict[tuple[SourceLine, int], dict[int, Saved]] = defaultdict(dict)
    for save in checkpoints.saves:
        if save.event.by == "torch.save" and save.done_ns != FAILED and save.event.site:
            rounds[save.event.site, save.event.step].setdefault(save.rank, save)
    told: set[SourceLine] = set()
    for (site, _), saves in rounds.items():
        if site in told or len(saves) < 2 or not _are_parts(saves) or not _work_together(checkpoints, list(saves)):
            continue
        named_by = _named_by({rank: PurePosixPath(save.event.path).parent.parts for rank, save in saves.items()})
        if named_by:
            told.add(site)
            yield Scattered(site, saves, named_by)


def _are_parts(saves: Mapping[int, Saved]) -> bool:
    """Each file bears the number of its rank, and else they have one name; or each holds its rank's shards."""
    names = {rank: PurePosixPath(save.event.path).name for rank, save in saves.items()}
    templates = {_without(name, rank) for rank, name in names.items()}
    numbered = len(set(names.values())) == len(names) and None not in templates and len(templates) == 1
    return numbered or all(save.event.parts > 1 for save in saves.values())


def _without(name: str, rank: int) -> str | None:
    """The name with the rank's number left out at the last place where it stands; None where it stands nowhere."""
    places = [found for found in re.finditer(r"\d+", name) if int(found[0]) == rank]
    return f"{name[: places[-1].start()]}#{name[places[-1].end() :]}" if places else None


def _work_together(checkpoints: Checkpoints, ranks: list[int]) -> bool:
    """All of them have called collectives in one group."""
    groups = [checkpoints.logs[rank] for rank in ranks]
    called = [{log.text(int(number)) for number in set(log.calls["group"].tolist())} for log in groups]
    shared = set.intersection(*called)
    return any(group.name in shared and set(ranks) <= set(group.ranks) for group in groups[0].group_list())


def _named_by(folders: Mapping[int, tuple[str, ...]]) -> str:
    """By what ranks have named the only folders in which their paths differ; "" where it may be meant."""
    if len({len(parts) for parts in folders.values()}) != 1:
        return ""
    levels = [level for level in zip(*folders.values(), strict=True) if len(set(level)) > 1]
    kinds = {_kind(level) for level in levels}
    return kinds.pop() if len(kinds) == 1 else ""


def _kind(names: tuple[str, ...]) -> str:
    """What these names of one folder differ in, where they are else the same."""
    for pattern, kind in ((_RANDOM, RANDOM), (_EPOCH, CLOCK), (_TIME, CLOCK)):
        found = [list(pattern.finditer(name)) for name in names]
        if all(len(one) == 1 for one in found) and len({pattern.sub("#", name) for name in names}) == 1:
            near = kind == RANDOM or all(_near(*pair) for pair in combinations([_seconds(one[0]) for one in found], 2))
            return kind if near else ""
    return ""


def _seconds(found: re.Match[str]) -> int:
    if found.re is _EPOCH:
        return int(found[1])
    return int(found[1]) * 3600 + int(found[3]) * 60 + int(found[4])


def _near(one: int, other: int) -> bool:
    """Whether two clocks were read soon after each other, around midnight too."""
    apart = abs(one - other)
    return min(apart, abs(_DAY_S - apart)) <= APART_S
