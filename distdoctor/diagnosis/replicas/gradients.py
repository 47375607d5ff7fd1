"""What every optimizer step found and left behind, seen across the ranks: who should agree with whom, and what each of them held.

Who should agree is known, not guessed: from DistributedDataParallel's process group, from the mesh and placements of a DTensor,
from `distdoctor.watch(model)`, or, where gradients are averaged by hand, from collectives that have the shapes of the gradients.
Where nothing tells, what stays equal in the first steps while it is trained is a replica by its own evidence (`observed`), and
findings on it are no more than likely. Nothing else is compared.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import ClassVar, Self

from distdoctor.diagnosis.check import NotApplicable, NotSeen
from distdoctor.diagnosis.derived import derived
from distdoctor.diagnosis.facts.replicas import Replicas
from distdoctor.diagnosis.replicas.observed import courses, equal_sets
from distdoctor.diagnosis.replicas.own_parts import began_apart, never_sent
from distdoctor.diagnosis.replicas.rank_gradients import (
    NO_END,
    Alike,
    RankGradients,
    TensorInfo,
    Tensors,
    Update,
    same_ranks,
)
from distdoctor.recording.recording import Recording
from distdoctor.recording.trace.events import WATCHED, Averaging, GradientsUnused, Joined, Wrapped
from distdoctor.recording.trace.layout import TensorFlag

WRAPPER, PLACEMENT, BY_HAND = "DistributedDataParallel", "DTensor", "all_reduce by hand"
OBSERVED = "staying equal in the first steps"


@dataclass(frozen=True, eq=False)  # told apart as objects: two may hold ten thousand ranks each
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
    # What is known of a set of peers, worked out once.
    _agreeing: dict[tuple[ReplicaGroup, bool], Mapping[str, TensorInfo]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _firsts: dict[ReplicaGroup, Mapping[str, tuple[int, ...]]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _updates: dict[ReplicaGroup, Mapping[int, Sequence[Update]]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _alike: dict[tuple[ReplicaGroup, str], tuple[tuple[int, ...], ...]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @classmethod
    def of(cls, recording: Recording) -> Self:
        until = _evenly_until(recording)
        alike = Alike()
        ranks = {rank: RankGradients(log, until, alike) for rank, log in recording.ranks.items()}
        if not any(one.updates for one in ranks.values()):
            if len(ranks) > 1 and all(log.has_noted(GradientsUnused) for log in recording.ranks.values()):
                raise NotSeen(
                    "gradients were computed, but no optimizer stepped: weights that the program changes by itself"
                )
            raise NotApplicable("no optimizer step was recorded")
        return cls(ranks, tuple(_peers(ranks, recording)), recording)

    def updates(self, peers: ReplicaGroup, step: int | None = None) -> Mapping[int, Sequence[Update]]:
        """rank -> the updates of these peers, in order; of one step only when asked."""
        if peers not in self._updates:
            self._updates[peers] = {one.rank: _updates_of(one, peers) for one in self._ranks_of(peers)}
        found = self._updates[peers]
        return found if step is None else {rank: [u for u in mine if u.step == step] for rank, mine in found.items()}

    def agreeing(self, peers: ReplicaGroup, *, on_gradients: bool) -> Mapping[str, TensorInfo]:
        """name -> parameter on which the peers should agree, or on whose gradients, in the order of the optimizer."""
        if (peers, on_gradients) not in self._agreeing:
            self._agreeing[peers, on_gradients] = self._parameters(peers, on_gradients)
        return self._agreeing[peers, on_gradients]

    def other_orders(self, peers: ReplicaGroup) -> Mapping[str, tuple[int, ...]]:
        """The first parameter that is not the same -> the ranks that hold it there, where the peers hold the same parameters in
        different orders; {} where they do not. One digest over all of them says nothing then."""
        if peers not in self._firsts:
            self._firsts[peers] = self._first_of_each_order(peers)
        return self._firsts[peers]

    def _first_of_each_order(self, peers: ReplicaGroup) -> dict[str, tuple[int, ...]]:
        known: dict[int, tuple[str, ...]] = {}
        found: dict[tuple[str, ...], list[int]] = defaultdict(list)
        for one in self._ranks_of(peers):
            if id(one.tensors) not in known:
                own = {t.index: t.name for t in one.tensors.values()
                       if t.optimizer == peers.optimizer and not t.flags & TensorFlag.BUFFER}  # fmt: skip
                known[id(one.tensors)] = tuple(own[index] for index in sorted(own))
            found[known[id(one.tensors)]].append(one.rank)
        if len(found) < 2 or len({tuple(sorted(names)) for names in found}) > 1:
            return {}
        at = next(number for number, names in enumerate(zip(*found, strict=True)) if len({*names}) > 1)
        firsts: dict[str, list[int]] = defaultdict(list)
        for names, ranks in found.items():
            firsts[names[at]].extend(ranks)
        return {name: tuple(sorted(ranks)) for name, ranks in firsts.items()}

    def tensors_of(self, ranks: Iterable[int]) -> Iterator[TensorInfo]:
        """The tensors of these ranks; those that several share once."""
        return (tensor for tensors in self._sets_of(ranks) for tensor in tensors.values())

    def _sets_of(self, ranks: Iterable[int]) -> Iterable[Tensors]:
        return {id(self.ranks[rank].tensors): self.ranks[rank].tensors for rank in ranks if rank in self.ranks}.values()

    def _parameters(self, peers: ReplicaGroup, on_gradients: bool) -> dict[str, TensorInfo]:
        found: dict[str, TensorInfo] = {}
        for tensors in self._sets_of(peers.ranks):
            newest: dict[str, TensorInfo] = {}  # one that is unfrozen is written down once more
            for tensor in tensors.values():
                agree = tensor.grad_agree if on_gradients else tensor.agree
                mine = same_ranks(agree, peers.lane) and (not peers.names or tensor.name in peers.names)
                if mine and tensor.optimizer == peers.optimizer and not tensor.flags & TensorFlag.BUFFER:
                    newest[tensor.name] = tensor
            for name, tensor in newest.items():
                found.setdefault(name, tensor)
        own = began_apart(self._ranks_of(peers), self._not_sent(peers, found), peers.optimizer)
        return {name: tensor for name, tensor in found.items() if name not in own}

    def not_sent(self, peers: ReplicaGroup) -> frozenset[str]:
        """The parameters of which no averages by hand were seen, where others were averaged so."""
        return self._not_sent(peers, self.agreeing(peers, on_gradients=True))

    def _not_sent(self, peers: ReplicaGroup, tensors: Mapping[str, TensorInfo]) -> frozenset[str]:
        return never_sent(self._ranks_of(peers), tensors) if peers.by == BY_HAND else frozenset()

    def _ranks_of(self, peers: ReplicaGroup) -> list[RankGradients]:
        return [self.ranks[rank] for rank in peers.ranks if rank in self.ranks]

    def alike(self, peers: ReplicaGroup, column: str) -> Sequence[tuple[int, ...]]:
        """The peers in sets whose digests of one kind are equal in every tensor of every step that is kept: of each set, one rank
        is looked at for all of them."""
        if (peers, column) not in self._alike:
            sets: dict[object, list[int]] = defaultdict(list)
            for rank in peers.ranks:
                if rank in self.ranks:
                    sets[self.ranks[rank].content(column)].append(rank)
            self._alike[peers, column] = tuple(map(tuple, sets.values()))
        return self._alike[peers, column]

    def every_update(self) -> Iterator[Update]:
        for one in self.ranks.values():
            yield from one.updates


def _updates_of(one: RankGradients, peers: ReplicaGroup) -> Sequence[Update]:
    """Those of the peers' optimizer for the tensors on which they should agree."""
    updates = one.updates
    mine = [u for u in updates if u.optimizer == peers.optimizer and same_ranks(u.agree, peers.lane)]
    return updates if len(mine) == len(updates) else mine


def _evenly_until(recording: Recording) -> int:
    """The last step that all ranks have made with inputs of their own: where ranks join unevenly, later ones do not match."""
    joined = [[joined.steps for joined in log.noted(Joined)] for log in recording.ranks.values()]
    for together in zip_longest(*joined):
        known = [steps for steps in together if steps is not None]
        if len(set(known)) > 1:
            return min(known)
    return NO_END


def _peers(ranks: Mapping[int, RankGradients], recording: Recording) -> Iterator[ReplicaGroup]:
    reduced_by = _reduced_by(ranks, recording)
    known: dict[tuple[tuple[int, ...], int], None] = {}
    alone: dict[int, set[int]] = defaultdict(
        set
    )  # optimizer -> ranks that hold tensors of which nobody has told anything
    shapes: dict[int, dict[str, str]] = defaultdict(dict)  # optimizer -> those of its tensors, by name
    for tensors, holding in _holders(ranks):
        for tensor in tensors.values():
            if tensor.flags & TensorFlag.BUFFER:
                continue
            for agree in (tensor.agree, tensor.grad_agree):
                if len(agree) > 1:
                    known[agree, tensor.optimizer] = None
                elif not agree:
                    alone[tensor.optimizer].update(holding)
                    shapes[tensor.optimizer][tensor.name] = tensor.shape
    for agree, optimizer in sorted(known):
        yield ReplicaGroup(agree, optimizer, reduced_by.get(agree, PLACEMENT), agree)
    for optimizer, holders in sorted(alone.items()):
        averaged = by_hand(recording, shapes[optimizer].values()) if len(holders) > 1 else ()
        told = [tuple(rank for rank in members if rank in holders) for members in averaged]
        told = [members for members in told if len(members) > 1]
        for members in told:
            yield ReplicaGroup(members, optimizer, BY_HAND, ())
        if not told:
            for members, names in equal_sets(courses(ranks, optimizer, holders)).items():
                yield ReplicaGroup(members, optimizer, OBSERVED, (), names)


def _reduced_by(ranks: Mapping[int, RankGradients], recording: Recording) -> dict[tuple[int, ...], str]:
    """Ranks -> how their gradients are reduced, as far as a wrapper, the collectives or the user tell."""
    watched = (event.ranks for one in ranks.values() for event in one.events(Averaging) if event.by == WATCHED)
    found = dict.fromkeys(_sets(watched), WATCHED)
    found |= {members: BY_HAND for members in by_hand(recording) if members in found}
    return found | dict.fromkeys(_sets(event.ranks for one in ranks.values() for event in one.events(Wrapped)), WRAPPER)


def _sets(told: Iterable[tuple[int, ...]]) -> Iterable[tuple[int, ...]]:
    """Sets of ranks in order; each object, which all its ranks may have told of, once."""
    return [tuple(sorted(members)) for members in {id(one): one for one in told}.values()]


def _holders(ranks: Mapping[int, RankGradients]) -> Iterable[tuple[Tensors, list[int]]]:
    """The tensors of all ranks, those that many share once, with who holds them."""
    found: dict[int, tuple[Tensors, list[int]]] = {}
    for rank, one in ranks.items():
        found.setdefault(id(one.tensors), (one.tensors, []))[1].append(rank)
    return found.values()


def by_hand(recording: Recording, shapes: Iterable[str] = ()) -> Iterable[tuple[int, ...]]:
    """Sets of ranks whose collectives have the shapes of their gradients: of an optimizer of parameters of these, if given."""
    if not Replicas.streams <= recording.streams:
        return []
    held = tuple(shapes)
    known = (one for one in derived(Replicas, recording).sets if not one.proven)
    return [one.ranks for one in known if not held or one.averages(held)]
