"""A tensor x expert x pipeline parallel job over NCCL, simulated event by event, and the flight recorder dumps that it leaves.

Every rank has a host that enqueues its program and a device that works through the queue. A collective completes when the devices
of all members are at it and all of them brought the same operation and size; a receive when its send is there; sends run beside
the queue. The host may run a fixed number of calls ahead, and waits for its device at the end of each step. Faults: the host
stops, the device stops (before a call, or only its completions are not noted any more, as after a GPU error), a call is left
out, has another size, a send or receive is left out, a call on everybody's group is added. Whatever happens after the fault
follows from these rules alone.
"""

from __future__ import annotations

import pickle
import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

START = 1_758_000_000_000_000_000
TICK = 1_000_000
HOST_STOPS, DEVICE_STOPS, SILENT_DEVICE, SKIPS, OTHER_SIZE, HALF_PAIR, ADDS = (
    "host stops", "device stops", "silent device", "skips", "other size", "half a pair", "adds",
)  # fmt: skip


@dataclass(frozen=True)
class Call:
    """One call of a program. `peer` is the global rank at the other end of a send or receive."""

    op: str  # all_reduce, _all_gather_base, _reduce_scatter_base, all_to_all, send, recv, or sync: the host waits for the device
    group: str = ""
    size: int = 16
    peer: int = -1
    line: int = 0

    @property
    def is_pair(self) -> bool:
        return self.op in ("send", "recv")


@dataclass(frozen=True)
class Fault:
    """What goes wrong on which rank, at which place of its program."""

    what: str
    rank: int
    at: int


@dataclass(frozen=True)
class Shape:
    """How large the job is, and how its hosts run. The ranks of one tensor parallel group are neighbours, as in Megatron."""

    tensor: int = 2
    expert: int = 2
    pipeline: int = 2
    steps: int = 3
    micro_batches: int = 2
    run_ahead: int = 24

    @property
    def world(self) -> int:
        return self.tensor * self.expert * self.pipeline

    def rank(self, tensor: int, expert: int, stage: int) -> int:
        return tensor + self.tensor * (expert + self.expert * stage)

    def place(self, rank: int) -> tuple[int, int, int]:
        return rank % self.tensor, rank // self.tensor % self.expert, rank // (self.tensor * self.expert)

    def groups(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Name -> (description, members), names in the order in which the groups are made."""
        found = {"0": ("default_pg", tuple(range(self.world)))}
        for stage in range(self.pipeline):
            for expert in range(self.expert):
                ranks = tuple(self.rank(t, expert, stage) for t in range(self.tensor))
                found[str(len(found))] = ("TENSOR_MODEL_PARALLEL_GROUP", ranks)
        for stage in range(self.pipeline):
            ranks = tuple(self.rank(t, e, stage) for e in range(self.expert) for t in range(self.tensor))
            found[str(len(found))] = ("EXPERT_MODEL_PARALLEL_GROUP", ranks)
        for expert in range(self.expert):
            for tensor in range(self.tensor):
                ranks = tuple(self.rank(tensor, expert, stage) for stage in range(self.pipeline))
                found[str(len(found))] = ("PIPELINE_MODEL_PARALLEL_GROUP", ranks)
        return found


def program(shape: Shape, rank: int) -> list[Call]:
    """What one rank does: all micro-batches forwards, all backwards, the gradients, every step."""
    tensor, expert, stage = shape.place(rank)
    mine = {about[0]: name for name, about in shape.groups().items() if rank in about[1]}
    tp, ep, pp = (mine[f"{word}_PARALLEL_GROUP"] for word in ("TENSOR_MODEL", "EXPERT_MODEL", "PIPELINE_MODEL"))
    before = shape.rank(tensor, expert, stage - 1) if stage else -1
    after = shape.rank(tensor, expert, stage + 1) if stage + 1 < shape.pipeline else -1
    found: list[Call] = []
    for _ in range(shape.steps):
        for forward in (True, False):
            source, target = (before, after) if forward else (after, before)
            for _ in range(shape.micro_batches):
                found += [Call("recv", pp, 32, source, 10)] if source >= 0 else []
                found += [Call("_all_gather_base", tp, 32, line=11), Call("all_to_all", ep, 48, line=12)]
                found += [Call("all_to_all", ep, 56, line=13), Call("_reduce_scatter_base", tp, 32, line=14)]
                found += [Call("send", pp, 32, target, 15)] if target >= 0 else []
        found += [Call("all_reduce", "0", 64, line=20), Call("sync")]
    return found


@dataclass
class Issued:
    """A call that a host has enqueued."""

    call: Call
    number: int
    record: int
    created: int
    started: int = 0
    completed: int = 0
    noted: bool = True  # whether the rank noticed the end


@dataclass
class Rank:
    rank: int
    program: list[Call]
    next: int = 0
    device: int = 0  # the place in `issued` that the device is at
    issued: list[Issued] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    stops_host: int = -1
    stops_device: int = -1
    silent_from: int = -1


class Job:
    """The job, run until nothing moves any more."""

    def __init__(self, shape: Shape, faults: Sequence[Fault] = (), seed: int = 0) -> None:
        self.shape, self.random, self.now = shape, random.Random(seed), 0
        self.members = {name: ranks for name, (_, ranks) in shape.groups().items()}
        self.ranks = [Rank(rank, program(shape, rank)) for rank in range(shape.world)]
        self.happened: set[int] = set()
        for fault in faults:
            self._plant(fault)
        self._run()

    def _plant(self, fault: Fault) -> None:
        rank = self.ranks[fault.rank]
        at = fault.at % len(rank.program)
        wanted = {SKIPS: lambda c: not c.is_pair, OTHER_SIZE: lambda c: c.op not in ("all_to_all", "send", "recv"),
                  HALF_PAIR: lambda c: c.is_pair}.get(fault.what, lambda c: True)  # fmt: skip
        places = [n for n, c in enumerate(rank.program) if c.op != "sync" and wanted(c)]
        at = next((n for n in places if n >= at), places[-1])
        if fault.what == HOST_STOPS:
            rank.stops_host = at
        elif fault.what == DEVICE_STOPS:
            rank.stops_device = at
        elif fault.what == SILENT_DEVICE:
            rank.silent_from = at
        elif fault.what == OTHER_SIZE:
            rank.program[at] = replace(rank.program[at], size=rank.program[at].size + 2)
        elif fault.what == ADDS:
            rank.program.insert(at, Call("all_reduce", "0", 8, line=30))
        else:
            del rank.program[at]

    def _run(self) -> None:
        moving = True
        while moving:
            order = list(self.ranks)
            self.random.shuffle(order)
            moved = [step(rank) for rank in order for step in (self._host, self._device)]
            moving = any(moved)

    def _host(self, rank: Rank) -> bool:
        """Enqueue one call, where the host may."""
        if rank.next >= len(rank.program) or rank.next == rank.stops_host:
            return False
        call = rank.program[rank.next]
        behind = sum(1 for one in rank.issued if not (one.completed and one.noted))
        if call.op == "sync" and behind:
            return False
        if behind >= self.shape.run_ahead:
            return False
        rank.next += 1
        if call.op == "sync":
            return True
        self.now += 1
        key = f"p2p {call.group}" if call.is_pair else call.group
        rank.counts[key] += 1
        rank.issued.append(Issued(call, rank.counts[key], len(rank.issued), self.now))
        return True

    def _device(self, rank: Rank) -> bool:
        """Begin or complete one call."""
        moved = self._sends(rank)
        while rank.device < len(rank.issued) and rank.issued[rank.device].completed:
            rank.device += 1
        if rank.device >= len(rank.issued) or self._is_stopped(rank, rank.device):
            return moved
        here = rank.issued[rank.device]
        self.now += 1
        if not here.started:
            here.started = self.now
            if here.call.op == "send":
                rank.device += 1  # it goes on beside the queue
            return True
        others = self._with(rank, here)
        if others is None:
            return moved
        for other, one in ((rank, here), *others):
            self._complete(other, one)
        return True

    def _is_stopped(self, rank: Rank, at: int) -> bool:
        return rank.stops_device >= 0 and at >= self._issued_before(rank, rank.stops_device)

    def _issued_before(self, rank: Rank, place: int) -> int:
        return sum(1 for call in rank.program[:place] if call.op != "sync")

    def _complete(self, rank: Rank, one: Issued) -> None:
        one.completed = self.now
        one.noted = rank.silent_from < 0 or one.record < self._issued_before(rank, rank.silent_from)

    def _sends(self, rank: Rank) -> bool:
        """A send that has begun completes as soon as its receive has begun."""
        moved = False
        for one in rank.issued:
            if one.call.op == "send" and one.started and not one.completed:
                theirs = self._match(rank, one)
                if theirs is not None and theirs.started:
                    self._complete(rank, one)
                    self._complete(self.ranks[one.call.peer], theirs)
                    moved = True
        return moved

    def _match(self, rank: Rank, one: Issued) -> Issued | None:
        """The other end: the n-th of one direction meets the n-th of the other."""
        back = "recv" if one.call.op == "send" else "send"
        mine = [o for o in rank.issued if (o.call.op, o.call.peer) == (one.call.op, one.call.peer)]
        theirs = [o for o in self.ranks[one.call.peer].issued if (o.call.op, o.call.peer) == (back, rank.rank)]
        place = mine.index(one)
        return theirs[place] if place < len(theirs) else None

    def _with(self, rank: Rank, here: Issued) -> list[tuple[Rank, Issued]] | None:
        """The other members, when all of them are in the same collective, with the same operation and size."""
        if here.call.is_pair:
            return None  # completed by the sender
        found = []
        for number in self.members[here.call.group]:
            other = self.ranks[number]
            if other is rank:
                continue
            theirs = other.issued[other.device] if other.device < len(other.issued) else None
            if theirs is None or not theirs.started or theirs.completed:
                return None
            same = (theirs.call.group, theirs.number, theirs.call.op, theirs.call.size)
            if same != (here.call.group, here.number, here.call.op, here.call.size):
                return None
            found.append((other, theirs))
        return found

    @property
    def is_stuck(self) -> bool:
        return any(rank.next < len(rank.program) or any(not i.completed for i in rank.issued) for rank in self.ranks)

    def dump(self, rank: int, moment: int | None = None, **how: Any) -> dict[str, Any]:
        """The dump of a rank, as it was written at some moment, at the end if none is given."""
        return Dump(**how).of(self, self.ranks[rank] if moment is None else _at(self.ranks[rank], moment))

    def write(self, folder: Path, lost: Sequence[int] = (), **how: Any) -> Path:
        for rank in range(self.shape.world):
            if rank not in lost:
                (folder / f"_dump_{rank}").write_bytes(pickle.dumps(self.dump(rank, **how), protocol=2))
        return folder


def _at(rank: Rank, moment: int) -> Rank:
    """What a rank had issued, and seen to begin and to complete, at a moment."""
    issued = [
        replace(one, started=one.started * (one.started <= moment), completed=one.completed * (one.completed <= moment))
        for one in rank.issued
        if one.created <= moment
    ]
    counts: dict[str, int] = defaultdict(int)
    for one in issued:
        counts[f"p2p {one.call.group}" if one.call.is_pair else one.call.group] += 1
    return replace(rank, issued=issued, counts=counts)


@dataclass(frozen=True)
class Dump:
    """How the recorder writes: only what is active or a ring of some length, with counters, starts and frames or without."""

    active_only: bool = True
    counters: bool = True
    starts: bool = False
    frames: bool = False
    ring: int = 2000

    def of(self, job: Job, rank: Rank) -> dict[str, Any]:
        groups = {name: about for name, about in job.shape.groups().items() if rank.rank in about[1]}
        numbers = {name: number for number, name in enumerate(sorted(groups, key=int))}
        entries = [self._entry(job, rank, one, groups, numbers) for one in rank.issued[-self.ring :]]
        if self.active_only:
            entries = [entry for entry in entries if not entry["retired"]]
        config = {name: {"name": name, "desc": d, "ranks": str(list(ranks))} for name, (d, ranks) in groups.items()}
        status = {str(number): self._status(rank, name) for name, number in numbers.items()} if self.counters else {}
        return {
            "version": "2.9",
            "pg_config": config,
            "nccl_version": "2.27.3",
            "pg_status": status,
            "entries": entries,
        }

    def _status(self, rank: Rank, name: str) -> dict[str, int]:
        calls = [one for one in rank.issued if one.call.group == name]
        done = [one for one in calls if one.completed and one.noted]
        begun = [one for one in calls if one.started]
        return {
            "last_enqueued_collective": calls[-1].number if calls else -1,
            "last_started_collective": begun[-1].number if begun and self.starts else -1,
            "last_completed_collective": done[-1].number if done else -1,
        }

    def _entry(self, job: Job, rank: Rank, one: Issued, groups: Any, numbers: Any) -> dict[str, Any]:
        call, done = one.call, bool(one.completed and one.noted)
        members = groups[call.group][1]
        arrow = {"send": "->", "recv": "<-"}.get(call.op, "")
        name = f" {members.index(rank.rank)}{arrow}{members.index(call.peer)}" if arrow else ""
        begun = bool(one.started) and self.starts
        entry = {
            "record_id": one.record, "pg_id": numbers[call.group], "process_group": (call.group, groups[call.group][0]),
            "collective_seq_id": rank.counts[call.group] if call.is_pair else one.number,
            "p2p_seq_id": one.number if call.is_pair else 0, "op_id": one.record + 1, "profiling_name": f"nccl:{call.op}{name}",
            "time_created_ns": START + one.created * TICK, "input_sizes": [[call.size]], "input_dtypes": ["BFloat16"],
            "output_sizes": [[call.size]], "output_dtypes": ["BFloat16"],
            "state": "completed" if done else "started" if begun else "scheduled",
            "time_discovered_started_ns": START + one.started * TICK if begun else None,
            "time_discovered_completed_ns": START + one.completed * TICK if done else None, "retired": done,
            "timeout_ms": 600000, "is_p2p": call.is_pair, "thread_id": "1", "thread_name": "pt_main",
        }  # fmt: skip
        if self.frames:
            entry["frames"] = [{"name": "step", "filename": "/job/train.py", "line": call.line}]
        return entry
