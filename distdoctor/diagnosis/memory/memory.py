"""What memory was used for, step by step and rank by rank, and what of it grows.

Growth is judged by the median of slopes (Theil and Sen): a step that needs more than others moves it little. What levels off,
what was given back once, and what was seen in too few steps does not grow.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, takewhile
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from distdoctor.diagnosis.check import NotApplicable
from distdoctor.diagnosis.per_rank import PerRank
from distdoctor.recording.recording import RankTrace, Recording, SourceLine
from distdoctor.recording.trace.events import Evaluated, OutOfMemory
from distdoctor.recording.trace.layout import GRAPH_NODES, HOOKS, HolderFlag, Phase

Numbers = NDArray[np.float64]
MIB = 1 << 20
LAZY_BUCKETS_SINCE = (2, 15)  # of torch: DistributedDataParallel takes lazy_bucket_allocation
FEWEST = 5  # looks at which a holder has grown
FEWEST_PILES = 4  # of hooks, which are seen when several of one function are on a module already
LATER = 2  # of three rates between four parts of the time
FEWEST_SIZES = 8  # that the workers were seen to have
MOST_POINTS = 200  # of which all pairs are compared


def mib(size: float) -> str:
    """`1.5 MiB`, `320 MiB`, `12 KiB`, `3.2 GiB`."""
    for unit, word in ((1 << 30, "GiB"), (MIB, "MiB"), (1024, "KiB")):
        if abs(size) >= unit:
            return f"{size / unit:.3g} {word}" if abs(size) < 1000 * unit else f"{size / unit:,.0f} {word}"
    return f"{size:.0f} bytes"


_OF_HOLDER = ["label", "kind", "site", "flags", "step", "bytes", "saved", "nodes", "old_nodes", "tensors", "length"]


def slope(steps: Sequence[float] | Numbers, values: Sequence[float] | Numbers) -> float:
    """The median of the slopes between all pairs of points, in units per step; 0 with fewer than two."""
    x, y = np.asarray(steps, np.float64), np.asarray(values, np.float64)
    if len(x) > MOST_POINTS:
        chosen = np.linspace(0, len(x) - 1, MOST_POINTS).astype(int)
        x, y = x[chosen], y[chosen]
    first, second = np.triu_indices(len(x), 1)
    apart = x[second] - x[first]
    if not len(apart[apart > 0]):
        return 0.0
    return float(np.median((y[second] - y[first])[apart > 0] / apart[apart > 0]))


def grows_steadily(steps: Numbers, values: Numbers, *, parts: int = 4, least: float = 0.4) -> bool:
    """Whether each part of the time adds to it, and the later ones no less than `least` of the mean: nothing that levels off
    does. What grows faster and faster adds little at first."""
    if len(steps) < 3 * parts:
        return False
    edges = np.linspace(0, len(steps), parts + 1).astype(int)
    middles = [(np.median(steps[a:b]), np.median(values[a:b])) for a, b in pairwise(edges) if b > a]
    rates = [(v - u) / (t - s) for (s, u), (t, v) in pairwise(middles) if t > s]
    mean = sum(rates) / len(rates) if rates else 0.0
    return bool(mean > 0 and min(rates) > 0 and min(rates[-LATER:]) >= least * mean)


@dataclass(frozen=True)
class HeldBytes:
    """One look at one holder."""

    step: int
    bytes: int
    saved: int
    nodes: int
    old_nodes: int
    tensors: int
    length: int
    part: bool = False  # there was more of the graph than was counted


@dataclass(frozen=True)
class Holder:
    """A variable or attribute of the user's program and what lay in it, look by look. `site` is in the function that holds it;
    line 0: it is a global of that file."""

    rank: int
    label: str
    kind: str
    site: SourceLine
    flags: HolderFlag
    looks: tuple[HeldBytes, ...]

    @property
    def key(self) -> tuple[str, str, str]:
        """The same holder on other ranks."""
        return (self.label, self.site.path, self.site.function)

    @property
    def graph_growth(self) -> tuple[HeldBytes, ...]:
        """The longest run of looks in which ever more of the graph was there before; () when that is no growth.

        A graph that is made anew in each step has nothing old in it, however large it gets. One that still has what a backward
        pass needs, and is let go later, was waiting for it: the moves of an episode, a window of several steps.
        """
        looks = list(takewhile(lambda look: not look.part and look.nodes < GRAPH_NODES, self.looks))
        best: list[HeldBytes] = []
        run: list[HeldBytes] = []
        for look in looks:
            if look.old_nodes and (not run or look.old_nodes > run[-1].old_nodes):
                run.append(look)
            else:
                run = [look] if look.old_nodes else []
            best = run if len(run) > len(best) else best
        let_go = len(best) > 0 and best[-1] is not looks[-1] and best[-1].saved > best[0].saved
        return tuple(best) if len(best) >= 3 and not let_go else ()

    @property
    def may_be_waiting(self) -> bool:
        """Whether the graph that grows still has all that a backward pass through it needs."""
        looks = self.graph_growth
        return bool(looks) and looks[-1].saved > looks[0].saved

    @property
    def plain_growth(self) -> tuple[HeldBytes, ...]:
        """All looks, where the bytes grew again and again, never became fewer, and at a rate that does not fall off; else ()."""
        return () if self.flags & HolderFlag.BOUNDED else self._growing([look.bytes for look in self.looks])

    @property
    def hook_growth(self) -> tuple[HeldBytes, ...]:
        """The same of hooks: all looks, where there were more of them again and again."""
        return self._growing([look.length for look in self.looks], FEWEST_PILES) if self.kind == HOOKS else ()

    def _growing(self, amounts: Sequence[int], least: int = FEWEST) -> tuple[HeldBytes, ...]:
        every = list(zip(self.looks, amounts, strict=True))
        # What grows once in an evaluation or an epoch is found unchanged in between; at the end that says that it has stopped.
        found = [one for number, one in enumerate(every) if number == 0 or one[1] != every[number - 1][1]]
        found += [] if found[-1:] == every[-1:] else every[-1:]
        if len(found) < least:
            return ()
        pairs = pairwise(found)
        rates = [(more - less) / (later.step - look.step) for (look, less), (later, more) in pairs]
        if min(rates) <= 0 or min(rates[-2:]) < 0.5 * float(np.median(rates)):
            return ()
        return self.looks

    def per_step(self, looks: Sequence[HeldBytes]) -> float:
        """Bytes by which it grows in a step: the tensors in it, and what the graph behind them keeps."""
        return slope([look.step for look in looks], [look.bytes + look.saved for look in looks])


@dataclass(frozen=True)
class Evaluation:
    """Batches that went through a model in eval mode while gradients were on."""

    site: SourceLine
    variable: str
    how: str  # running, over, used
    nodes: int
    bytes: int
    batches: int
    at_ns: int


@dataclass(frozen=True)
class Shortage:
    """An allocation failed. Bytes; `limit` 0: not known."""

    phase: str
    rss: int
    allocated: int
    limit: int
    at_ns: int


@dataclass(frozen=True)
class PhasePeak:
    """What a rank was at when its recording ended: the phase of which step, and the user's line at which the phase began."""

    phase: Phase
    step: int
    began_at: SourceLine


def _held(row: Sequence[int]) -> HeldBytes:
    """One row, as `_OF_HOLDER` orders it."""
    _, _, _, flags, step, size, saved, nodes, old_nodes, tensors, length = row
    return HeldBytes(step, size, saved, nodes, old_nodes, tensors, length, bool(flags & HolderFlag.PART))


class RankMemory:
    """The stream of one rank. `rows` have the fields of `layout.MEMORY`, one for each step that was written down."""

    def __init__(self, log: RankTrace) -> None:
        self.rank, self.log = log.rank, log
        self.rows: Any = log.rows("memory")

    @property
    def steps(self) -> Numbers:
        return np.asarray(self.rows["step"], np.float64)

    def column(self, name: str) -> Numbers:
        """One number for each row, in order."""
        return np.asarray(self.rows[name], np.float64)

    def last(self, name: str) -> int:
        return int(self.rows[name][-1]) if len(self.rows) else 0

    def most(self, name: str) -> int:
        return int(self.rows[name].max()) if len(self.rows) else 0

    @property
    def on_device(self) -> bool:
        return bool(len(self.rows)) and int(self.rows["device"][-1]) >= 0

    @property
    def knows_lazy_buckets(self) -> bool:
        """Whether DistributedDataParallel takes `lazy_bucket_allocation` there: torch 2.15, or no version recorded."""
        version = re.match(r"(\d+)\.(\d+)", str(self.log.environment.get("torch") or ""))
        return version is None or (int(version[1]), int(version[2])) >= LAZY_BUCKETS_SINCE

    @property
    def site(self) -> SourceLine:
        """The line where the optimizer steps."""
        sites = [self.log.site(row["site"]) for row in self.rows[-1:] if int(row["site"])]
        return (
            sites[0]
            if sites
            else next((self.log.site(r["site"]) for r in self.rows[::-1] if int(r["site"])), SourceLine())
        )

    @property
    def at_ns(self) -> int:
        """When the last row was written, on the wall clock."""
        return self.last("at_ns") + self.log.monotonic_to_wall_ns if len(self.rows) else 0

    @cached_property
    def holders(self) -> list[Holder]:
        """Everything that was seen to hold tensors, by name."""
        found: dict[tuple[str, str, str, bool], list[tuple[int, ...]]] = defaultdict(list)
        for row in self.log.rows("holders")[_OF_HOLDER].tolist():
            label, kind, site = self.log.text(row[0]), self.log.text(row[1]), self.log.site(row[2])
            found[label, site.path, site.function, kind == HOOKS].append(row)
        return [self._holder(label, rows) for (label, *_), rows in found.items()]

    def _holder(self, label: str, rows: Sequence[tuple[int, ...]]) -> Holder:
        looks = {row[4]: row for row in rows}
        _, kind, site, flags, *_ = rows[-1]
        return Holder(
            self.rank,
            label,
            self.log.text(kind),
            self.log.site(site),
            HolderFlag(flags),
            tuple(_held(row) for _, row in sorted(looks.items())),
        )

    @property
    def looked_at(self) -> tuple[int, ...]:
        """The steps after which the user's variables were looked at and something was found."""
        return tuple(sorted({int(row["step"]) for row in self.log.rows("holders")}))

    @cached_property
    def evaluations(self) -> list[Evaluation]:
        offset = self.log.monotonic_to_wall_ns
        return [
            Evaluation(one.site, one.label, one.how, one.nodes, one.nbytes, one.batches, one.at_ns + offset)
            for one in self.log.noted(Evaluated)
        ]

    @property
    def shortage(self) -> Shortage | None:
        """What was noted when an allocation failed."""
        for one in self.log.noted(OutOfMemory):
            at_ns = one.at_ns + self.log.monotonic_to_wall_ns
            return Shortage(one.phase, one.resident, one.allocated, one.limit, at_ns)
        return None

    @property
    def doing(self) -> PhasePeak | None:
        """What it was at last."""
        for row in self.log.rows("doing")[-1:]:
            return PhasePeak(Phase(int(row["phase"])), int(row["step"]) + 1, self.log.site(row["site"]))
        return None

    def growth(self) -> tuple[float, int]:
        """(bytes per step by which resident memory has grown steadily to the end, over so many steps); (0, 0) without."""
        rows = self.rows[self.rows["step"] > 3]  # by then everything is made
        if len(rows) < 12:
            return 0.0, 0
        steps, sizes = np.asarray(rows["step"], np.float64), np.asarray(rows["rss"], np.float64)
        if not grows_steadily(steps, sizes):
            return 0.0, 0
        return slope(steps, sizes), int(steps[-1] - steps[0])

    def growth_of_workers(self) -> tuple[float, int, int]:
        """(bytes per step by which the workers of its loaders have grown steadily to the end, bytes in all, over so many steps),
        all looks with equally many workers; zeros without."""
        rows = self.rows[(self.rows["step"] > 3) & (self.rows["workers"] > 0)]
        steps, sizes = np.asarray(rows["step"], np.float64), np.asarray(rows["workers_rss"], np.float64)
        # Rows repeat what was seen up to a second before. A cache that two workers fill halves its growth with each epoch.
        if len(set(rows["workers"].tolist())) != 1 or len(set(sizes.tolist())) < FEWEST_SIZES:
            return 0.0, 0, 0
        if not grows_steadily(steps, sizes, least=0.6):
            return 0.0, 0, 0
        return slope(steps, sizes), int(sizes[-1] - sizes[0]), int(steps[-1] - steps[0])

    def fastest_growing(self) -> tuple[Holder, float] | None:
        """The variable that was seen to grow most in a step, and by how many bytes; None when none grew from look to look."""
        found = [(holder, holder.per_step(looks)) for holder in self.holders
                 if (looks := holder.graph_growth or holder.plain_growth)]  # fmt: skip
        return max(found, key=lambda one: one[1], default=None)

    def saved(self) -> list[tuple[int, str, str, SourceLine]]:
        """(bytes, path, class, line) of each module in the step in which the modules together kept most (deep mode)."""
        rows = self.log.rows("saved")
        if not len(rows):
            return []
        totals = {int(step): int(rows["bytes"][rows["step"] == step].sum()) for step in np.unique(rows["step"])}
        step = max(totals, key=lambda one: (totals[one], one))
        text = self.log.text
        chosen = [
            (int(row["bytes"]), text(int(row["path"])), text(int(row["owner"])), self.log.site(row["site"]))
            for row in rows[rows["step"] == step]
        ]
        return sorted(chosen, key=lambda one: (-one[0], one[1]))

    def phase_peaks(self) -> dict[Phase, int]:
        """Highest resident bytes of each phase that was looked at (deep mode)."""
        rows = self.log.rows("peaks")
        return {
            phase: int(np.maximum(mine["peak"], mine["rss"]).max())
            for phase in Phase
            if len(mine := rows[rows["phase"] == phase])
        }

    @cached_property
    def peak(self) -> int:
        """The highest bytes: allocated on its device where it has one, else resident."""
        if self.on_device:
            return self.most("peak")
        return max(self.most("rss"), self.most("rss_backward"), *self.phase_peaks().values(), 0)

    @property
    def before_training(self) -> int:
        """Resident bytes that are neither the model's nor a step's: Python, libraries, data. 0 on a device."""
        if self.on_device or not len(self.rows):
            return 0
        peaks = self.log.rows("peaks")
        ready = peaks[peaks["phase"] == Phase.START]
        started = int(self.rows["rss"][0])
        if not len(ready):
            return started
        model = self.most("parameters") + self.most("buffers") + self.buckets()
        if not len(peaks[peaks["phase"] == Phase.DATA]):  # no DataLoader: setting up went on until the first backward
            model += sum(size for size, *_ in self.saved())
        return max(started, int(ready["rss"][0]) - model)

    def buckets(self) -> int:
        """Bytes of the buckets that DistributedDataParallel keeps besides the gradients (deep mode)."""
        rows = self.log.rows("peaks")
        return int(rows["buckets"].max()) if len(rows) else 0


@dataclass(frozen=True)
class Memory:
    """The streams of all ranks."""

    streams: ClassVar[frozenset[str]] = frozenset({"memory"})
    ranks: Mapping[int, RankMemory]
    recording: Recording

    @classmethod
    def of(cls, recording: Recording) -> Self:
        ranks = PerRank(recording.ranks, lambda rank: RankMemory(recording.ranks[rank]))
        if not any(len(one.rows) for one in ranks.values()):
            raise NotApplicable("no memory was recorded")
        return cls(ranks, recording)

    def each(self) -> Iterator[RankMemory]:
        """The ranks that recorded something, in order."""
        for _, one in sorted(self.ranks.items()):
            if len(one.rows):
                yield one
