"""What every optimizer step found and left behind, seen across the ranks: who should agree with whom, and what each of them held.

Who should agree is known, not guessed: from DistributedDataParallel's process group, from the mesh and placements of a DTensor,
or, where gradients are averaged by hand, from collectives that have the shapes of the gradients. Where nothing tells, what stays
equal in the first steps while it is trained is a replica by its own evidence (`observed`), and findings on it are no more than
likely. Nothing else is compared.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import zip_longest
from typing import Any, ClassVar, Self

import numpy as np

from distdoctor.diagnosis.check import NotApplicable
from distdoctor.diagnosis.derived import derived
from distdoctor.diagnosis.facts.replicas import Replicas
from distdoctor.diagnosis.replicas.observed import courses, equal_sets
from distdoctor.recording.recording import RankTrace, Recording, SourceLine, no_rows
from distdoctor.recording.trace.events import Joined, Kind, Wrapped
from distdoctor.recording.trace.layout import DTYPES, TensorFlag, UpdateFlag, ranks_of, ranks_text

_NO_END = 1 << 32
WRAPPER, PLACEMENT, BY_HAND = "DistributedDataParallel", "DTensor", "all_reduce by hand"
OBSERVED = "staying equal in the first steps"


@dataclass(frozen=True)
class TensorInfo:
    """One parameter of one optimizer on one rank. `agree` are the ranks that should hold the same bits, () when not known."""

    seq: int
    name: str
    shape: str
    dtype: str
    owner: str
    numel: int
    optimizer: int
    index: int
    agree: tuple[int, ...]
    grad_agree: tuple[int, ...]
    flags: TensorFlag


@dataclass(frozen=True)
class Update:
    """One step of one optimizer on one rank, for the tensors that `agree` should agree on. Fields as in `layout.UPDATE`."""

    rank: int
    step: int
    optimizer: int
    agree: tuple[int, ...]
    at_ns: int  # wall clock
    site: SourceLine
    loss_site: SourceLine
    roots: str
    flags: UpdateFlag
    row: Any = field(repr=False)

    @property
    def digested(self) -> bool:
        return bool(self.flags & UpdateFlag.DIGESTED)

    def number(self, name: str) -> int:
        return int(self.row[name])

    def value(self, name: str) -> float:
        return float(self.row[name])


class RankGradients:
    """The stream of one rank, up to the step `until` which every rank has made with inputs of its own."""

    def __init__(self, log: RankTrace, until: int = _NO_END) -> None:
        self.rank, self.log, self.until = log.rank, log, until
        self._names: dict[tuple[int, bytes], tuple[tuple[str, ...], Any]] = {}
        self.tensors = {int(row["seq"]): self._tensor(row) for row in log.rows("tensors")}
        self.updates = [self._update(row) for row in log.rows("updates") if int(row["step"]) <= until]

    def _tensor(self, row: Any) -> TensorInfo:
        text = self.log.text
        return TensorInfo(
            seq=int(row["seq"]),
            name=text(int(row["name"])) or f"parameter {int(row['index'])}",
            shape=text(int(row["shape"])),
            dtype=DTYPES[int(row["dtype"])] if int(row["dtype"]) < len(DTYPES) else "",
            owner=text(int(row["owner"])),
            numel=int(row["numel"]),
            optimizer=int(row["optimizer"]),
            index=int(row["index"]),
            agree=ranks_of(text(int(row["agree"]))),
            grad_agree=ranks_of(text(int(row["grad_agree"]))),
            flags=TensorFlag(int(row["flags"])),
        )

    def _update(self, row: Any) -> Update:
        log = self.log
        return Update(
            rank=self.rank,
            step=int(row["step"]),
            optimizer=int(row["optimizer"]),
            agree=ranks_of(log.text(int(row["agree"]))),
            at_ns=int(row["at_ns"]) + log.monotonic_to_wall_ns,
            site=log.site(row["site"]),
            loss_site=log.site(row["loss_site"]),
            roots=log.text(int(row["roots"])),
            flags=UpdateFlag(int(row["flags"])),
            row=row,
        )

    @cached_property
    def _digests(self) -> dict[int, Any]:
        """step -> the rows of its tensors."""
        rows = self.log.rows("digests")
        rows = rows[rows["step"] <= self.until]
        steps = rows["step"]
        return {int(step): rows[steps == step] for step in np.unique(steps)}

    def held(self, step: int, optimizer: int) -> tuple[tuple[str, ...], Any]:
        """The names of its tensors, and for each of them its row of `layout.DIGEST`, of those that are still kept."""
        rows = self._digests.get(step)
        if rows is None:
            return (), no_rows("digests")
        known = (optimizer, rows["tensor"].tobytes())
        if known not in self._names:  # steps have the same tensors in the same order
            infos = [self.tensors.get(int(seq)) for seq in rows["tensor"]]
            mine = [i for i, info in enumerate(infos) if info is not None and info.optimizer == optimizer]
            self._names[known] = tuple(infos[i].name for i in mine), np.array(mine, dtype=np.intp)  # type: ignore[union-attr]
        names, mine_at = self._names[known]
        return names, rows if len(names) == len(rows) else rows[mine_at]

    def digests(self, step: int, optimizer: int) -> dict[str, Any]:
        """name -> row of `layout.DIGEST`, of those that are still kept."""
        return dict(zip(*self.held(step, optimizer), strict=True))

    def rows_of(self, seq: int) -> Iterator[tuple[int, Any]]:
        """(step, row) of one tensor, in order."""
        for step, rows in self._digests.items():
            for row in rows[rows["tensor"] == seq]:
                yield step, row

    def info(self, name: str, optimizer: int) -> TensorInfo | None:
        """The newest record of a parameter by its name."""
        known = [t for t in self.tensors.values() if t.name == name and t.optimizer == optimizer]
        return known[-1] if known else None

    def events(self, kind: type[Kind]) -> Iterator[Kind]:
        """The events of one kind; `at_ns` is on the wall clock."""
        for event in self.log.noted(kind):
            yield replace(event, at_ns=event.at_ns + self.log.monotonic_to_wall_ns)


@dataclass(frozen=True)
class ReplicaGroup:
    """Ranks that should agree on what one optimizer holds, and how we know. `lane` is how their updates name the set.

    `names`: the parameters on which they should; empty: on all of the lane.
    """

    ranks: tuple[int, ...]
    optimizer: int
    by: str
    lane: tuple[int, ...]
    names: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Gradients:
    """The streams of all ranks, and who should agree with whom."""

    streams: ClassVar[frozenset[str]] = frozenset({"gradients"})
    ranks: Mapping[int, RankGradients]
    peers: tuple[ReplicaGroup, ...]
    recording: Recording
    _agreeing: dict[tuple[ReplicaGroup, bool], dict[str, TensorInfo]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @classmethod
    def of(cls, recording: Recording) -> Self:
        until = _evenly_until(recording)
        ranks = {rank: RankGradients(log, until) for rank, log in recording.ranks.items()}
        if not any(one.updates for one in ranks.values()):
            raise NotApplicable("no optimizer step was recorded")
        return cls(ranks, tuple(_peers(ranks, recording)), recording)

    def updates(self, peers: ReplicaGroup, step: int | None = None) -> dict[int, list[Update]]:
        """rank -> the updates of these peers, in order; of one step only when asked."""
        return {
            rank: [
                update
                for update in self.ranks[rank].updates
                if update.optimizer == peers.optimizer
                and update.agree == peers.lane
                and (step is None or update.step == step)
            ]
            for rank in peers.ranks
            if rank in self.ranks
        }

    def agreeing(self, peers: ReplicaGroup, *, on_gradients: bool) -> Mapping[str, TensorInfo]:
        """name -> parameter on which the peers should agree, or on whose gradients, in the order of the optimizer."""
        if (peers, on_gradients) not in self._agreeing:
            found: dict[str, TensorInfo] = {}
            for rank in peers.ranks:
                for tensor in self.ranks[rank].tensors.values() if rank in self.ranks else ():
                    if tensor.name in found or tensor.optimizer != peers.optimizer:
                        continue
                    agree = tensor.grad_agree if on_gradients else tensor.agree
                    mine = agree == peers.lane and (not peers.names or tensor.name in peers.names)
                    if mine and not tensor.flags & TensorFlag.BUFFER:
                        found[tensor.name] = tensor
            self._agreeing[peers, on_gradients] = found
        return self._agreeing[peers, on_gradients]

    def every_update(self) -> Iterator[Update]:
        for one in self.ranks.values():
            yield from one.updates


def _evenly_until(recording: Recording) -> int:
    """The last step that all ranks have made with inputs of their own: where ranks join unevenly, later ones do not match."""
    joined = [[joined.steps for joined in log.noted(Joined)] for log in recording.ranks.values()]
    for together in zip_longest(*joined):
        known = [steps for steps in together if steps is not None]
        if len(set(known)) > 1:
            return min(known)
    return _NO_END


def _peers(ranks: Mapping[int, RankGradients], recording: Recording) -> Iterator[ReplicaGroup]:
    wrapped = {ranks_text(event.ranks) for one in ranks.values() for event in one.events(Wrapped)}
    known: dict[tuple[tuple[int, ...], int], None] = {}
    alone: dict[int, set[int]] = defaultdict(
        set
    )  # optimizer -> ranks that hold tensors of which nobody has told anything
    for one in ranks.values():
        for tensor in one.tensors.values():
            if tensor.flags & TensorFlag.BUFFER:
                continue
            for agree in (tensor.agree, tensor.grad_agree):
                if len(agree) > 1:
                    known[agree, tensor.optimizer] = None
                elif not agree:
                    alone[tensor.optimizer].add(one.rank)
    for agree, optimizer in sorted(known):
        by = WRAPPER if ",".join(map(str, agree)) in wrapped else PLACEMENT
        yield ReplicaGroup(agree, optimizer, by, agree)
    for optimizer, holders in sorted(alone.items()):
        told = [tuple(r for r in members if r in holders) for members in by_hand(recording) if len(holders) > 1]
        told = [members for members in told if len(members) > 1]
        for members in told:
            yield ReplicaGroup(members, optimizer, BY_HAND, ())
        if not told:
            for members, names in equal_sets(courses(ranks, optimizer, holders)).items():
                yield ReplicaGroup(members, optimizer, OBSERVED, (), names)


def by_hand(recording: Recording) -> Iterable[tuple[int, ...]]:
    """Sets of ranks whose collectives have the shapes of their gradients."""
    if not Replicas.streams <= recording.streams:
        return []
    return [one.ranks for one in derived(Replicas, recording).sets if not one.proven]
