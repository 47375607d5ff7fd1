"""Plays a script: calls wait for each other as they do in torch, and every moment of it can be read like a live job."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from distdoctor.recording.recording import Job, RankEnd, RankTrace, Recording
from distdoctor.recording.trace.events import Exiting, InitBegun, InitDone, NewGroupDone, UncaughtException
from distdoctor.recording.trace.layout import POINT_TO_POINT, CallFlag, Op
from distdoctor.testing.actions import Action, Programs, Survivors
from distdoctor.testing.rank_trace import MILLISECOND, SECOND, START_NS, WALL_NS, TraceBuilder, noting_sources

_POINT_TO_POINT = [int(op) for op in POINT_TO_POINT]
PEER_GONE = "RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:4711"
TIMED_OUT = (
    "RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation to complete"
)


@dataclass
class _Runner:
    """One rank at work."""

    log: TraceBuilder
    program: list[Action]
    at: int = 0
    ready_ns: int = 0
    open: tuple[dict[str, Any], Action] | None = None  # the synchronous call that it sits in
    caught: bool = False  # the exception of that call: it goes on after it
    handles: list[tuple[dict[str, Any], Action]] = field(default_factory=list)
    passes: dict[int, dict[str, Any]] = field(default_factory=dict)
    end: RankEnd | None = None


@dataclass
class SimulatedJob:
    """Everything that happened, readable at any moment."""

    script: Programs
    runners: dict[int, _Runner]
    moments: list[int]  # when something happened, in order
    draws: dict[int, list[tuple[int, int]]]  # rank -> (seq of the pass, when) of every batch
    _logs: dict[int, RankTrace] = field(default_factory=dict)

    @property
    def last_ns(self) -> int:
        return self.moments[-1] if self.moments else START_NS

    def end(self, survivors: Survivors, patience: int = 20 * SECOND) -> None:
        """End whoever still runs; the launcher does so after `patience` nanoseconds of silence."""
        now = self.last_ns + (patience if survivors == "killed" else 0)
        for rank, runner in self.runners.items():
            if runner.end is not None or survivors == "left":
                continue
            now += 10 * MILLISECOND
            if survivors == "time out" and runner.open is not None:
                now = max(now, runner.open[0]["entered_ns"] + 1800 * SECOND)
            if survivors == "killed" or runner.open is None:
                runner.end = RankEnd(None, 15, ended_by_launcher=True, at_ns=now)
            else:
                row, _ = runner.open
                row["returned_ns"], row["flags"] = now, row["flags"] | CallFlag.FAILED
                _raise(runner, PEER_GONE if survivors == "fail" else TIMED_OUT, _words(runner, row), now)
            self.moments.append(now)
            self._logs.pop(rank, None)

    def read(self, at: int | Mapping[int, int], *, running: bool = True, ends_at: int | None = None) -> Recording:
        """What a reader finds at a moment (or, rank by rank, at moments of its own). How ranks ended is looked up first,
        by default at the earliest of those moments."""
        moments = {rank: at if isinstance(at, int) else at[rank] for rank in self.runners}
        seen_at = min(moments.values()) if ends_at is None else ends_at
        ends = {rank: r.end for rank, r in self.runners.items() if r.end is not None and r.end.at_ns <= seen_at}
        job = Job(
            argv=self.script.argv,
            world_size=self.script.world_size,
            ends=ends,
            running=running,
            read_at_ns=max(moments.values()) if running else 0,
            read_wall_ns=max(moments.values()) + WALL_NS - START_NS if running else 0,
            exit_code=None
            if running
            else max((end.exit_code or int(end.signal > 0) for end in ends.values()), default=0),
            launcher="torchrun",
        )
        ranks = {r: self._cut(r, moment) for r, moment in moments.items() if r not in self.script.silent}
        return Recording(job=job, ranks=noting_sources(ranks, self.script.texts), sources=dict(self.script.texts))

    def _cut(self, rank: int, at_ns: int) -> RankTrace:
        if rank not in self._logs:
            self._logs[rank] = self.runners[rank].log.build()
        log = cut(self._logs[rank], at_ns)
        for row in log.passes:
            row["batches"] = sum(seq == row["seq"] and when <= at_ns for seq, when in self.draws[rank])
            row["drawn"] = row["batches"] * row["batch_size"]
        return log


def cut(log: RankTrace, at_ns: int) -> RankTrace:
    """The log as a reader would have found it at that moment. What rows were rewritten with later is undone."""
    calls = log.calls[log.calls["entered_ns"] <= at_ns].copy()
    unreturned = calls["returned_ns"] > at_ns
    calls["returned_ns"][unreturned] = 0
    calls["flags"][unreturned] &= ~np.uint16(CallFlag.FAILED)
    events = log.events[log.events["at_ns"] <= at_ns]
    groups = log.groups[: int((events["kind"] == NewGroupDone.number).sum())].copy()
    collectives = calls[~np.isin(calls["op"], _POINT_TO_POINT)]
    for row in groups:
        mine = collectives[collectives["group"] == row["key"]]
        for name, source in (
            ("count", "number"),
            ("prefix", "prefix"),
            ("site_prefix", "site_prefix"),
            ("last_ns", "entered_ns"),
        ):
            row[name] = mine[-1][source] if len(mine) else 0
    passes = log.passes[log.passes["started_ns"] <= at_ns].copy()
    passes["ended_ns"][passes["ended_ns"] > at_ns] = 0
    steps = log.steps[log.steps["at_ns"] <= at_ns]
    return replace(log, calls=calls, groups=groups, events=events, passes=passes, steps=steps)


def play(
    script: Programs, rng: random.Random | None = None, *, rendezvous: bool = False, exits: bool = False
) -> SimulatedJob:
    """Run every program until nobody can go on.

    Each thing that happens takes a moment of its own, a millisecond later than the one before. `rendezvous`: a send returns only
    when its receive is there (a large message); otherwise it returns at once. `exits`: a rank whose program is over leaves.
    """
    return _Stage(script, rng, rendezvous, exits).play()


class _Stage:
    def __init__(self, script: Programs, rng: random.Random | None, rendezvous: bool, exits: bool) -> None:
        self.script, self.rng, self.rendezvous, self.exits = script, rng, rendezvous, exits
        self.now = START_NS
        self.moments: list[int] = []
        self.draws: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self.entered: dict[tuple[str, int], Counter[tuple[Any, ...]]] = defaultdict(
            Counter
        )  # ranks by what they brought
        self.sends: dict[tuple[str, int, int, int], int] = defaultdict(int)
        self.recvs: dict[tuple[str, int, int, int], int] = defaultdict(int)
        self.taken: set[int] = set()  # ids of receives from anybody that have got theirs
        self.runners = {rank: self._runner(rank) for rank in range(script.world_size)}

    def _runner(self, rank: int) -> _Runner:
        log = TraceBuilder(rank, world_size=self.script.world_size, host=self.script.hosts.get(rank, "node0"))
        hosts = sorted(set(self.script.hosts.values()))
        if log.host in hosts:  # clocks of another machine: it was booted at another time
            log.monotonic_to_wall_ns += (hosts.index(log.host) + 1) * 12_345_678_901
        log.note(InitBegun("gloo"), site="train.py:5 main", at_ns=START_NS)
        for name, (ranks, backend) in self.script.groups.items():
            if rank in ranks:
                log.group(name, ranks, backend=backend, at_ns=START_NS)
        log.note(InitDone(self.script.world_size), at_ns=START_NS)
        return _Runner(log, list(self.script.programs[rank]))

    def play(self) -> SimulatedJob:
        while True:
            able = [rank for rank, runner in self.runners.items() if self._able(runner)]
            if not able:
                later = [r.ready_ns for r in self.runners.values() if r.end is None and r.ready_ns > self.now]
                if not later:
                    break
                self.now = min(later)
                continue
            rank = self.rng.choice(able) if self.rng else min(able, key=lambda r: (self.runners[r].log.now, r))
            self.now += MILLISECOND
            self.moments.append(self.now)
            self._act(rank, self.runners[rank])
        return SimulatedJob(self.script, self.runners, self.moments, self.draws)

    def _able(self, runner: _Runner) -> bool:
        if runner.end is not None or runner.ready_ns > self.now:
            return False
        if runner.open is not None:
            return runner.caught or self._complete(runner.log.rank, *runner.open)
        if runner.at >= len(runner.program):
            return self.exits
        action = runner.program[runner.at]
        if action.kind == "stay":
            return False
        if action.kind in ("wait", "step"):
            return all(self._complete(runner.log.rank, *handle) for handle in runner.handles)
        return True

    def _act(self, rank: int, runner: _Runner) -> None:
        if runner.open is not None:
            row, action = runner.open
            row["returned_ns"] = runner.log.at(self.now)
            if runner.caught and not self._complete(rank, row, action):
                row["flags"] |= CallFlag.FAILED
            runner.open, runner.caught = None, False
            return
        if runner.at >= len(runner.program):
            _leave(runner, 0, self.now)
            return
        action = runner.program[runner.at]
        runner.at += 1
        getattr(self, f"_{action.kind}")(rank, runner, action)

    def _call(self, rank: int, runner: _Runner, action: Action) -> None:
        fields = dict(action.fields)
        caught_after = fields.pop("caught_after", 0.0)
        if caught_after:
            runner.ready_ns, runner.caught = self.now + int(caught_after * SECOND), True
        row = runner.log.call(**fields, at_ns=self.now, returned_ns=0)
        op = Op(row["op"])
        if op in POINT_TO_POINT:
            self._post(rank, row, fields["group"], op)
        else:
            self.entered[fields["group"], row["number"]][_fits(row)] += 1
        if fields.get("asynchronous") or fields.get("native"):
            row["returned_ns"] = self.now + MILLISECOND // 2
            runner.handles.append((row, action))
        else:
            runner.open = (row, action)

    def _post(self, rank: int, row: dict[str, Any], group: str, op: Op) -> None:
        if op is Op.SEND:
            key = (group, rank, row["root"], row["tag"])
            self.sends[key] += 1
            row["_turn"] = self.sends[key]
        elif op is Op.RECV:
            key = (group, row["root"], rank, row["tag"])
            self.recvs[key] += 1
            row["_turn"] = self.recvs[key]

    def _complete(self, rank: int, row: dict[str, Any], action: Action) -> bool:
        group, op = action.fields["group"], Op(row["op"])
        if op is Op.SEND:
            return not self.rendezvous or self.recvs[group, rank, row["root"], row["tag"]] >= row["_turn"]
        if op is Op.RECV:
            return bool(self.sends[group, row["root"], rank, row["tag"]] >= row["_turn"])
        if op is Op.RECV_ANY:
            return self._take(rank, row, group)
        members = self.script.groups[group][0]
        return list(self.entered[group, row["number"]].values()) == [len(members)]

    def _take(self, rank: int, row: dict[str, Any], group: str) -> bool:
        if id(row) not in self.taken:
            for source in self.script.groups[group][0]:
                key = (group, source, rank, row["tag"])
                if self.sends[key] > self.recvs[key]:
                    self.recvs[key] += 1
                    self.taken.add(id(row))
                    break
        return id(row) in self.taken

    def _wait(self, rank: int, runner: _Runner, action: Action) -> None:
        runner.handles.clear()

    def _step(self, rank: int, runner: _Runner, action: Action) -> None:
        runner.handles = [handle for handle in runner.handles if not handle[1].fields.get("native")]
        runner.log.step(at_ns=self.now, **action.fields)

    def _compute(self, rank: int, runner: _Runner, action: Action) -> None:
        runner.ready_ns = self.now + action.fields["nanoseconds"]

    def _note(self, rank: int, runner: _Runner, action: Action) -> None:
        runner.log.note(at_ns=self.now, **action.fields)

    def _draw(self, rank: int, runner: _Runner, action: Action) -> None:
        loader = action.fields["loader"]
        if loader not in runner.passes:
            runner.passes[loader] = runner.log.loader_pass(started_ns=self.now, ended_ns=0, **action.fields)
        row = runner.passes[loader]
        row["batches"] += 1
        row["drawn"] += row["batch_size"]
        self.draws[rank].append((row["seq"], self.now))

    def _exhausted(self, rank: int, runner: _Runner, action: Action) -> None:
        row = runner.passes.pop(action.fields["loader"], None)
        if row is not None:
            row["ended_ns"] = self.now

    def _raise(self, rank: int, runner: _Runner, action: Action) -> None:
        _raise(runner, action.fields["text"], action.fields["site"], self.now, action.fields["after"])

    def _exit(self, rank: int, runner: _Runner, action: Action) -> None:
        _leave(runner, action.fields["code"], self.now)

    def _kill(self, rank: int, runner: _Runner, action: Action) -> None:
        runner.end = RankEnd(None, action.fields["signal"], at_ns=self.now)


def _fits(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """What has to agree for a collective to complete; a wrong reduction does not stop it."""
    object_part = row["flags"] & CallFlag.OBJECT
    op = Op(row["op"])
    sized = op not in (Op.ALL_TO_ALL, Op.ALL_TO_ALL_SINGLE) and not object_part
    return (row["op"], row["nbytes"] if sized else 0, row["root"])


def _raise(runner: _Runner, words: str, site: Any, now: int, after: Sequence[str] = ()) -> None:
    traceback = f"rank-{runner.log.rank:05d}.a0.traceback.txt"
    runner.log.note(UncaughtException((words, *after), traceback), site=site, at_ns=now)
    runner.log.note(Exiting(after_exception=True), at_ns=now)
    runner.end = RankEnd(1, at_ns=now)


def _leave(runner: _Runner, code: int, now: int) -> None:
    runner.log.note(Exiting(), at_ns=now)
    runner.end = RankEnd(code, at_ns=now)


def _words(runner: _Runner, row: Mapping[str, Any]) -> str:
    """The site of a row in the words that builders take."""
    text = next(words for words, number in runner.log._texts.items() if number == row["site"])
    parts = text.split("\0")
    return f"{parts[0]}:{parts[1]} {parts[2]}" if len(parts) == 3 else ""
