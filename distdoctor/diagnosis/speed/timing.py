"""Where the time of a job goes, step by step: what each rank did with it, and whom the others waited for.

Whom they waited for is read from arrivals: a collective is over when its last member has come, so wall times of steps are equal
on all ranks, and the times of entry are not. Ranks of one host read one clock (CLOCK_MONOTONIC); arrivals of ranks of different
hosts are not compared.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from distdoctor.diagnosis.check import NotApplicable
from distdoctor.diagnosis.derived import derived
from distdoctor.diagnosis.facts.collectives import Collectives, GroupCalls, Track
from distdoctor.diagnosis.per_rank import PerRank
from distdoctor.diagnosis.speed.robust_median import RobustMedian
from distdoctor.recording.recording import RankTrace, Recording, SourceLine
from distdoctor.recording.trace.events import CoreShare
from distdoctor.recording.trace.layout import CallFlag, Op

MILLISECOND = 1e6
SECOND = 1e9
WARM_UP = 3  # steps at the start that say nothing: first allocations, compilation, bucket order
FEWEST = 16  # regular steps that make a rhythm; shorter jobs are left alone
MOST_LIVE = 64  # ranks of a running job; beyond that looking again and again would cost too much
DATA_SHARE = 0.15  # of a step in a DataLoader: more is data-bound
LATE_SHARE = 0.10  # of a step that the others wait for one rank
ALWAYS = 0.8  # of all steps: the same rank comes last "again and again"
WORTH_SECONDS = 0.5  # lost in all: below that nobody wants to hear of it
WORTH_STEP_NS = 3 * MILLISECOND  # and in each step
BETWEEN_STEPS = "is between optimizer.step and the next forward"
# Nobody leaves these before everybody has come. (The root of a broadcast may be far ahead, and nobody minds.)
MEETING = (
    Op.ALL_REDUCE,
    Op.ALL_GATHER,
    Op.ALL_GATHER_INTO_TENSOR,
    Op.REDUCE_SCATTER,
    Op.REDUCE_SCATTER_TENSOR,
    Op.ALL_TO_ALL,
    Op.ALL_TO_ALL_SINGLE,
    Op.BARRIER,
    Op.ALL_REDUCE_COALESCED,
    Op.ALL_GATHER_COALESCED,
    Op.REDUCE_SCATTER_COALESCED,
)
_MEETING = np.array(list(map(int, MEETING)))
_RECEIVING = np.array([int(Op.RECV), int(Op.RECV_ANY)])
_FROM_ROOT = np.array([int(Op.BROADCAST), int(Op.SCATTER)])
_NATIVE, _UNBLOCKING = int(CallFlag.NATIVE), int(CallFlag.NATIVE | CallFlag.ASYNC)

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Blocked:
    """The calls of a rank's main thread that do not return before they are over: [calls] when each began, and what all of them
    together took until then, nanoseconds; [calls + 1] for the latter."""

    entered: Floats
    returned: Floats
    total: Floats

    @classmethod
    def of(cls, log: RankTrace) -> Self:
        calls = log.calls
        rows = calls[((calls["flags"] & _UNBLOCKING) == 0) & (calls["returned_ns"] > 0) & (calls["thread"] == 0)]
        entered, returned = rows["entered_ns"].astype(float), rows["returned_ns"].astype(float)
        return cls(entered, returned, np.concatenate([[0.0], np.cumsum(returned - entered)]))

    def between(self, began: Floats, until: Floats) -> Floats:
        """Nanoseconds in such calls from one moment to another, for each pair."""
        found: Floats = self._until(until) - self._until(began)
        return found

    def _until(self, moments: Floats) -> Floats:
        number = np.searchsorted(self.entered, moments)
        last = np.maximum(number - 1, 0)
        under_way = np.maximum(0.0, self.returned[last] - moments) if len(self.returned) else 0.0
        found: Floats = self.total[number] - np.where(number > 0, under_way, 0.0)
        return found


@dataclass(frozen=True)
class RankTimes:
    """The regular steps of one rank, by rising number: arrays [steps], nanoseconds. `began` is when the step before was over."""

    rank: int
    log: RankTrace
    steps: NDArray[np.int64]
    began: Floats
    ended: Floats
    rows: Any  # of layout.TIME, the same steps

    @property
    def walls(self) -> Floats:
        return self.ended - self.began

    def of(self, name: str) -> Floats:
        """A field of `layout.TIME`."""
        found: Floats = self.rows[name].astype(float)
        return found

    @cached_property
    def on_cpu(self) -> bool:
        """Whether the times are those of the work itself: on a device Python only puts it into a queue."""
        return not uses_devices(self.log)

    @cached_property
    def workers(self) -> int:
        """Worker processes of the loader that trains."""
        return int(self.training_pass["workers"]) if self.training_pass is not None else 0

    @cached_property
    def training_pass(self) -> Any:
        """The newest pass over the loader during whose passes most of the steps were made, a row of `layout.PASS`; None where
        there is no pass. A step belongs to the pass that had begun last, of those that were not over: an evaluation makes none.
        """
        passes = self.log.loader_passes
        if not len(passes):
            return None
        owner = np.full(len(self.ended), -1)
        for number in np.argsort(passes["started_ns"], kind="stable"):
            begun, over = int(passes["started_ns"][number]), int(passes["ended_ns"][number])
            owner[(self.ended >= begun) & ((self.ended <= over) | (over == 0))] = number
        loops: Counter[tuple[int, int]] = Counter()
        for number, steps in zip(*np.unique(owner[owner >= 0], return_counts=True), strict=True):
            loops[int(passes["loop_site"][number]), int(passes["loader"][number])] += int(steps)
        if not loops:
            return passes[-1]
        site, loader = max(loops, key=loops.__getitem__)
        return passes[(passes["loop_site"] == site) & (passes["loader"] == loader)][-1]

    @cached_property
    def step(self) -> RobustMedian:
        return RobustMedian.of(self.walls)

    @cached_property
    def data(self) -> RobustMedian:
        return RobustMedian.of(self.of("data_ns"))

    @cached_property
    def last_bucket(self) -> Floats:
        """[steps] when C++ issued the last call of the last backward pass; 0 where it issued none."""
        calls = self.log.calls
        mask = (calls["flags"] & _NATIVE) != 0
        mask &= np.isin(calls["op"], _MEETING)
        steps, entered = calls["step"][mask].astype(np.int64) + 1, calls["entered_ns"][mask].astype(float)
        found: Floats = np.zeros(len(self.steps))
        at = np.minimum(np.searchsorted(self.steps, steps), len(self.steps) - 1)
        inside = (self.steps[at] == steps) & (entered >= self.of("forward_ended_ns")[at])
        inside &= entered <= self.of("backward_ended_ns")[at]
        found[at[inside]] = entered[inside]  # of several calls the last one stays
        return found

    @cached_property
    def forgotten(self) -> NDArray[np.bool_]:
        """[steps] Whether the calls of that step have left the ring."""
        if not self.log.lost.get("calls"):
            return np.zeros(len(self.steps), bool)
        oldest = int(self.log.calls["step"][0]) + 1 if len(self.log.calls) else 1 << 62
        return self.steps <= oldest

    @cached_property
    def forward_began(self) -> Floats:
        """[steps] when the forward may have begun, had the data been there: nothing was computed yet."""
        return np.maximum(self.began, self.of("forward_began_ns"))

    @cached_property
    def forward(self) -> Floats:
        """[steps] nanoseconds in forward passes: what no other part has of the time up to the last backward pass."""
        began, ended = self.forward_began, self.of("forward_ended_ns")
        earlier_passes = self.of("backward_ns") - (self.of("backward_ended_ns") - ended)
        return ended - began - self.of("data_ns") - self._blocked_between(began, ended) - earlier_passes

    @cached_property
    def idle(self) -> Floats:
        """[steps] nanoseconds of waiting for other ranks, as far as Python does: for handles, and in calls that block."""
        idle: Floats = np.where(
            self.forgotten, np.nan, self.of("waited_ns") + self._blocked_between(self.began, self.ended)
        )
        return idle

    @cached_property
    def _blocked(self) -> Blocked:
        return Blocked.of(self.log)

    def _blocked_between(self, began: Floats, until: Floats) -> Floats:
        return self._blocked.between(began, np.maximum(began, until))

    def parts(self) -> dict[str, Floats]:
        """What a rank did in each step: [steps] nanoseconds under the words that say what; NaN where it is not known.

        Backward is cut where its last bucket leaves: what comes then is waiting for others, but for a rank that comes last.
        """
        data, single = self.of("data_ns"), (self.of("backwards") == 1) & ~self.forgotten
        last_bucket = self.last_bucket
        tail = np.where(last_bucket > 0, self.of("backward_ended_ns") - last_bucket, 0.0)
        between = self.forward_began - self.began - self._blocked_between(self.began, self.forward_began)
        return {
            BETWEEN_STEPS: np.where(single, between, np.nan),
            "waits for its data": data,
            "computes before backward": np.where(single, self.forward, np.nan),
            "computes in backward": np.where(single, self.of("backward_ns") - tail, np.nan),
            "is in backward after its last bucket": np.where(single, tail, np.nan),
            "is in optimizer.step": self.of("optimizer_ns"),
        }


@dataclass(frozen=True)
class Arrivals:
    """Meetings of one group whose members share a clock.

    `at`: [members, meetings] when each entered, nanoseconds; `left`: when each came back (0: not known); `asked`: when each began
    to wait for its handle (0: not known); `steps`: [meetings] in which step, from 1; `blocking`: [meetings] whether everybody
    waits there; `rows`: [members][meetings] of layout.CALL.
    """

    group: GroupCalls
    ranks: tuple[int, ...]
    at: Floats
    left: Floats
    asked: Floats
    steps: NDArray[np.int64]
    blocking: NDArray[np.bool_]
    rows: tuple[Any, ...]

    @cached_property
    def last(self) -> NDArray[np.intp]:
        """[meetings] who came last, as a position in `ranks`."""
        found: NDArray[np.intp] = np.argmax(self.at, axis=0)
        return found

    @cached_property
    def late(self) -> Floats:
        """[meetings] how much later than the middle of the others began to wait, nanoseconds: a handle costs no time before.

        What the last one spent in calls of other groups meanwhile is not its own: there it waited itself."""
        meetings = np.arange(self.at.shape[1])
        ready = np.maximum(self.at, self.asked)
        ready[self.last, meetings] = np.inf
        others = np.median(np.sort(ready, axis=0)[:-1], axis=0)
        late: Floats = np.maximum(self.at[self.last, meetings] - others, 0)
        for place, rank in enumerate(self.ranks):
            own = np.flatnonzero((self.last == place) & (late > 0))
            blocked = Blocked.of(self.group.tracks[rank].timeline.log)
            late[own] -= blocked.between(others[own], self.at[place, own])
        return np.maximum(late, 0.0)

    def site(self, rank: int, meeting: int) -> SourceLine:
        log = self.group.tracks[rank].timeline.log
        return log.site(self.rows[self.ranks.index(rank)]["site"][meeting])

    def late_at(self, place: int, steps: Sequence[int]) -> SourceLine:
        """The line at which a member has cost the others most in these steps, all its arrivals there together."""
        lost: dict[int, float] = defaultdict(float)
        for meeting in np.flatnonzero((self.last == place) & np.isin(self.steps, steps)).tolist():
            lost[int(self.rows[place]["site"][meeting])] += float(self.late[meeting])
        log = self.group.tracks[self.ranks[place]].timeline.log
        return log.site(max(lost, key=lambda site: lost[site])) if lost else SourceLine()

    def lateness(self) -> dict[int, Floats]:
        """step -> [members] nanoseconds that the others lost because of each.

        Of calls that do not block, one after the other, the latest counts: they overlap.
        """
        found: dict[int, Floats] = {}
        run: tuple[int, float, int] | None = None  # step, late, who

        def close() -> None:
            nonlocal run
            if run is not None:
                found.setdefault(run[0], np.zeros(len(self.ranks)))[run[2]] += run[1]
            run = None

        columns = (self.steps.tolist(), self.late.tolist(), self.last.tolist(), self.blocking.tolist())
        for step, late, who, blocking in zip(*columns, strict=True):
            if blocking or (run is not None and run[0] != step):
                close()
            if blocking:
                found.setdefault(step, np.zeros(len(self.ranks)))[who] += late
            elif run is None or late > run[1]:
                run = (step, late, who)
        close()
        return found


@dataclass(frozen=True)
class Late:
    """What the others lose because of one rank: per step in nanoseconds (`least`: in four steps of five that or more), and the
    share of steps in which it came last (0-1), of those in which they met: once in `every` steps."""

    rank: int
    step: RobustMedian
    least: float
    share: float
    site: SourceLine
    total_ns: float
    every: int = 1


@dataclass(frozen=True)
class Timing:
    """The fact that checks on speed ask for."""

    streams: ClassVar[frozenset[str]] = frozenset({"collectives", "progress"})
    ranks: Mapping[int, RankTimes]
    arrivals: tuple[Arrivals, ...]
    recording: Recording

    @classmethod
    def of(cls, recording: Recording) -> Self:
        if recording.job.running and len(recording.ranks) > MOST_LIVE:
            raise NotApplicable("how the time is spent is examined when the job is over")
        if not recording.ranks or any(rank_times(log) is None for log in recording.ranks.values()):
            raise NotApplicable(f"fewer than {FEWEST + WARM_UP} steps were recorded on some rank")
        found = PerRank(recording.ranks, lambda rank: _times_of(recording.ranks[rank]))
        groups = derived(Collectives, recording).groups if len(found) > 1 else ()
        return cls(found, tuple(filter(None, map(arrivals_of, groups))), recording)

    @cached_property
    def step_ns(self) -> float:
        """What a step takes."""
        return float(np.median([times.step.value for times in self.ranks.values()]))

    @property
    def steps(self) -> int:
        """How many regular steps every rank has made."""
        return min(len(times.steps) for times in self.ranks.values())

    def queued(self, rank: int) -> tuple[float, float]:
        """What the main thread of a rank stood in the queue for a core: nanoseconds of each step, and the share (0-1) of the time
        in which it could have run. (0, 0) where nobody counted."""
        last = self._core_share(rank)
        if last is None:
            return 0.0, 0.0
        return last.queued_ns / last.steps, last.queued_ns / max(last.ran_ns + last.queued_ns, 1)

    def worked_ns(self, rank: int) -> float:
        """How long the main thread of a rank ran in each step; 0 where nobody counted."""
        last = self._core_share(rank)
        return last.ran_ns / last.steps if last is not None else 0.0

    def _core_share(self, rank: int) -> CoreShare | None:
        noted = list(self.recording.ranks[rank].noted(CoreShare))
        return noted[-1] if noted and noted[-1].steps else None

    def has_no_core_left(self, rank: int) -> bool:
        """Whether the ranks of its host compute on all cores that they may use together: other processes would take theirs."""
        host = self.ranks[rank].log.machine
        here = [other for other, times in self.ranks.items() if times.log.machine == host]
        shares = [share for other in here if (share := self._core_share(other)) is not None]
        if not all(self.ranks[other].on_cpu for other in here) or len(shares) < len(here):
            return False
        cores = len(set[int]().union(*(share.cpus for share in shares)))
        return min([cores, *(share.quota for share in shares if share.quota)]) <= len(here)

    def off_core_ns(self, rank: int) -> float:
        """How long the main thread of a rank slept in each step, for whatever it waited; 0 where nobody counted."""
        last = self._core_share(rank)
        if last is None:
            return 0.0
        return max(0.0, float(self.ranks[rank].walls.mean()) - (last.ran_ns + last.queued_ns) / last.steps)

    def is_worth(self, per_step: RobustMedian, share: float) -> bool:
        """Whether so many nanoseconds of each step are worth a word: that share of a step, no scatter, and not a trifle."""
        return per_step.stands_out and self.is_much(per_step, share)

    def is_much(self, per_step: RobustMedian, share: float) -> bool:
        """Whether the median is that share of a step and no trifle, however it scatters."""
        return (
            per_step.count >= FEWEST
            and per_step.value >= max(WORTH_STEP_NS, share * self.step_ns)
            and per_step.value * max(per_step.count, self.steps) >= WORTH_SECONDS * SECOND
        )

    def is_data_bound(self, rank: int) -> bool:
        """Whether a rank waits for its DataLoader in a good part of every step."""
        return self.is_worth(self.ranks[rank].data, DATA_SHARE)

    def is_late(self, late: Late) -> bool:
        """Whether the others wait for this rank again and again. What grows while the job runs scatters, and is no chance."""
        steady = late.step.stands_out or late.least >= LATE_SHARE / 2 * self.step_ns
        return late.share >= ALWAYS and steady and self.is_much(late.step, LATE_SHARE)

    def is_fed_by_messages(self, rank: int) -> bool:
        """Whether a rank comes last because its messages do, as the first stage of a pipeline does behind its last gradient: it
        receives in nearly every step, and does not work longer than whoever works longest beside it."""
        times = self.ranks[rank]
        calls = times.log.calls
        received = np.unique(calls["step"][np.isin(calls["op"], _RECEIVING)].astype(np.int64) + 1)
        kept = times.steps[~times.forgotten]
        if not len(kept) or np.mean(np.isin(kept, received)) < ALWAYS:
            return False
        work = {other: RobustMedian.of(one.walls - one.idle).value for other, one in self.ranks.items()}
        return work[rank] - max(work[other] for other in work if other != rank) < LATE_SHARE * self.step_ns

    @cached_property
    def late(self) -> tuple[Late, ...]:
        """The ranks by what the others lose because of them, the worst first."""
        regular = set.intersection(*(set(times.steps.tolist()) for times in self.ranks.values()))
        found: list[Late] = []
        for arrivals in self.arrivals:
            by_step = {step: late for step, late in arrivals.lateness().items() if step in regular}
            if len(by_step) < FEWEST:
                continue
            table = np.stack([by_step[step] for step in sorted(by_step)])  # [steps, members]
            worst = table.argmax(axis=1)
            every = round(float(np.median(np.diff(sorted(by_step)))))  # ranks that meet rarely are waited for as rarely
            for place, rank in enumerate(arrivals.ranks):
                mine = table[:, place]
                share = float(np.mean((worst == place) & (mine > 0)))
                site = arrivals.late_at(place, list(by_step))
                least = float(np.quantile(mine, 1 - ALWAYS)) / every
                found.append(Late(rank, RobustMedian.of(mine / every), least, share, site, float(mine.sum()), every))
        best: dict[int, Late] = {}
        for one in sorted(found, key=lambda late: -late.step.value):
            best.setdefault(one.rank, one)
        return tuple(best.values())

    def excess(self, rank: int) -> tuple[str, float]:
        """What this rank does longest by comparison with the others: the words, and how much longer a step (nanoseconds)."""
        others = [times.parts() for other, times in self.ranks.items() if other != rank]
        found = ("", 0.0)
        for words, mine in self.ranks[rank].parts().items():
            theirs = [RobustMedian.of(parts[words]).value for parts in others]
            more = RobustMedian.of(mine).value - float(np.median(theirs)) if theirs else 0.0
            if more > found[1]:
                found = (words, more)
        return found

    def loop_site(self, rank: int) -> SourceLine:
        """The line of the loop over the loader that trains."""
        times = self.ranks[rank]
        return times.log.site(times.training_pass["loop_site"]) if times.training_pass is not None else SourceLine()

    def loader_site(self, rank: int) -> SourceLine:
        """Where the loader that trains was made."""
        times = self.ranks[rank]
        return times.log.site(times.training_pass["made_site"]) if times.training_pass is not None else SourceLine()

    def step_site(self, rank: int) -> SourceLine:
        """The line of the optimizer's step."""
        log = self.ranks[rank].log
        return log.site(log.steps["site"][-1]) if len(log.steps) else SourceLine()


def rank_times(log: RankTrace, fewest: int = FEWEST) -> RankTimes | None:
    """The regular steps of a rank: without the first ones, and without those whose predecessor is not known. None: too few."""
    rows = log.rows("times")
    if len(rows) < 2:
        return None
    steps = rows["step"].astype(np.int64)
    regular = np.flatnonzero((np.diff(steps) == 1) & (steps[1:] > WARM_UP)) + 1
    if len(regular) < fewest:
        return None
    ends = rows["at_ns"].astype(float)
    return RankTimes(log.rank, log, steps[regular], ends[regular - 1], ends[regular], rows[regular])


def _times_of(log: RankTrace) -> RankTimes:
    found = rank_times(log)
    assert found is not None  # those that have none are refused before
    return found


def arrivals_of(group: GroupCalls) -> Arrivals | None:
    """The meetings of a group that all its members still remember and agree on; so is a broadcast for which its root came last,
    so that all others waited. None: another clock, a rank without recording.
    """
    tracks = [group.tracks.get(rank) for rank in group.members]
    known = [track for track in tracks if track is not None and track.count]
    if len(known) < 2 or len(known) < len(group.members):
        return None
    if len({track.timeline.log.machine for track in known}) > 1:
        return None
    numbers = known[0].rows["number"]
    for track in known[1:]:
        numbers = np.intersect1d(numbers, track.rows["number"])
    rows = [_numbered(track, numbers) for track in known]
    first = rows[0]
    meets = np.isin(first["op"], _MEETING)
    last = np.argmax([one["entered_ns"] for one in rows], axis=0)
    meets |= np.isin(first["op"], _FROM_ROOT) & (first["root"] == np.array([track.rank for track in known])[last])
    for other in rows[1:]:
        meets &= other["signature"] == first["signature"]
    rows = [one[meets] for one in rows]
    if not len(rows[0]):
        return None
    blocking = np.all([(one["flags"] & _UNBLOCKING) == 0 for one in rows], axis=0)
    return Arrivals(
        group,
        tuple(track.rank for track in known),
        np.stack([one["entered_ns"].astype(float) for one in rows]),
        np.stack([one["returned_ns"].astype(float) for one in rows]),
        np.stack([one["waited_ns"].astype(float) for one in rows]),
        rows[0]["step"].astype(np.int64) + 1,
        blocking,
        tuple(rows),
    )


def _numbered(track: Track, numbers: Any) -> Any:
    """The rows of these numbers in order, each once: in a damaged dump a number may be there again and again."""
    found, first = np.unique(track.rows["number"], return_index=True)
    return track.rows[first[np.isin(found, numbers)]]


def uses_devices(log: RankTrace) -> bool:
    """Whether the rank trains on a device, as far as its backends tell, or without any group the devices that it sees."""
    backends = {log.text(int(row["backend"])) for row in log.groups}
    if not backends:
        return bool(log.environment.get("cuda_devices"))
    return any(word in backend for backend in backends for word in ("nccl", "xccl", "hccl"))
