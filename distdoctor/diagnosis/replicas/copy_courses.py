"""Copies of the trained model over the steps in which the replicas agree: what they held on each rank, and what was written."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from distdoctor.diagnosis.rank_groups import variants_of
from distdoctor.diagnosis.replicas.gradients import Gradients, ReplicaGroup
from distdoctor.diagnosis.replicas.rank_gradients import same_ranks
from distdoctor.recording.trace.layout import DigestFlag, TensorFlag

BESIDE = TensorFlag.COPY | TensorFlag.FROZEN
LONG = 4  # sampled steps in which nobody writes into a copy
FEWEST = 3  # steps in which copies differ although the replicas agree


@dataclass(frozen=True)
class CopyCourse:
    """One copy on all ranks: step -> rank -> digest, of the steps in which the replicas agree; and its originals."""

    name: str
    module: str
    ranks: tuple[int, ...]
    digests: Mapping[int, Mapping[int, int]]
    originals: Mapping[int, Mapping[int, int]]
    written: Mapping[int, Mapping[int, int]]  # how often its parameters have been written to
    computing: frozenset[int]  # the steps in which it was looked at when it computed, not when the step was over
    is_module: bool = True  # else tensors that an object of the user's keeps

    @property
    def refreshed_in_vain(self) -> int:
        """In how many sampled steps every rank had written to a copy whose bits stay the first ones of its changing originals."""
        first = min(self.digests)
        used = sorted(self.computing) if len(self.computing) > FEWEST else sorted(self.digests)
        values = {value for step in used for value in self.digests[step].values()}
        if len(values) != 1 or values != set(self.originals[first].values()):
            return 0
        writes = [
            all(self.written[one][rank] < self.written[other][rank] for rank in self.ranks)
            for one, other in pairwise(used)
        ]
        return sum(writes) if self._trains_in(used) else 0

    def _trains_in(self, steps: list[int]) -> bool:
        """Whether the originals change from each of these steps to the next."""
        return all(self.originals[one] != self.originals[other] for one, other in pairwise(steps))

    @property
    def never_written(self) -> bool:
        """Whether no rank writes into it, while its originals, which it began as, change in every sampled step."""
        steps, first = sorted(self.digests), min(self.digests)
        held = {self.digests[step][rank] for step in steps for rank in self.ranks}
        counts = {self.written[step][rank] for step in steps for rank in self.ranks}
        begun = held == set(self.originals[first].values())
        return len(steps) > LONG and len(counts) == 1 and begun and self._trains_in(steps)

    @property
    def apart(self) -> list[int]:
        """The steps in which it is not the same everywhere."""
        return [step for step, values in sorted(self.digests.items()) if len(set(values.values())) > 1]

    @property
    def unchanging(self) -> tuple[int, ...]:
        """The ranks whose copy never changes."""
        return tuple(rank for rank in self.ranks if len({values[rank] for values in self.digests.values()}) == 1)

    @property
    def still(self) -> tuple[int, ...]:
        """The ranks whose copy never changes, where on others it does."""
        return self.unchanging if len(self.unchanging) < len(self.ranks) else ()

    @property
    def from_the_start(self) -> bool:
        return bool(self.apart) and self.apart[0] == min(self.digests) and len(self.apart) == len(self.digests)

    @property
    def in_turns(self) -> bool:
        """Whether some ranks changed it between two steps in which others did not."""
        steps = sorted(self.digests)
        changed = (
            {self.digests[one][rank] != self.digests[other][rank] for rank in self.ranks}
            for one, other in pairwise(steps)
        )
        return any(len(kinds) > 1 for kinds in changed)

    @property
    def begun_alike(self) -> tuple[int, ...]:
        """The ranks whose copy was the trained model when it was seen first."""
        first = min(self.digests)
        return tuple(rank for rank in self.ranks if self.digests[first][rank] == self.originals[first][rank])

    @property
    def follows(self) -> bool:
        """Whether it changes with nearly every step on each rank, as a moving average does, and no snapshot of the best."""
        pairs = list(pairwise(sorted(self.digests)))
        changed = (sum(self.digests[a][rank] != self.digests[b][rank] for a, b in pairs) for rank in self.ranks)
        return all(4 * count >= 3 * len(pairs) for count in changed)

    @property
    def is_explained(self) -> bool:
        """Whether what was seen tells how they part: by ranks that refresh it when others do not, or by what they began with.

        Copies that all ranks change in the same steps, and that differ all the same, are changed by what each rank draws or
        reads: noise for exploring, a task to adapt to.
        """
        begun = len(self.begun_alike)
        return bool(self.still) or self.in_turns or (self.from_the_start and 0 < begun < len(self.ranks))

    @property
    def odd(self) -> tuple[int, ...]:
        """Who keeps another one: the ranks that stand still, that began with another model than was trained, or the fewest;
        nobody where it is the same everywhere."""
        if not self.apart:
            return ()
        if self.still:
            return self.still
        begun = self.begun_alike
        if self.from_the_start and begun and len(begun) < len(self.ranks):
            return tuple(rank for rank in self.ranks if rank not in begun)
        variants = variants_of(self.digests[self.apart[-1]])
        tie = len(variants[0]) <= len(variants[1])
        return tuple(sorted(rank for variant in (variants if tie else variants[1:]) for rank in variant))


def copy_courses(gradients: Gradients, peers: ReplicaGroup) -> Iterator[CopyCourse]:
    """Every copy that all of the peers hold, over the steps in which they agree."""
    agreeing = agreeing_steps(gradients, peers)
    digests: dict[tuple[int, str], dict[int, dict[int, int]]] = defaultdict(lambda: defaultdict(dict))
    originals: dict[tuple[int, str], dict[int, dict[int, int]]] = defaultdict(lambda: defaultdict(dict))
    written: dict[tuple[int, str], dict[int, dict[int, int]]] = defaultdict(lambda: defaultdict(dict))
    computing: dict[tuple[int, str], dict[int, dict[int, int]]] = defaultdict(lambda: defaultdict(dict))
    plain: set[tuple[int, str]] = set()
    for rank in peers.ranks:
        own = gradients.ranks.get(rank)
        for tensor in own.tensors.values() if own is not None else ():
            mine = tensor.optimizer == peers.optimizer and same_ranks(tensor.agree, peers.lane)
            if own is not None and mine and tensor.flags & BESIDE == TensorFlag.COPY:
                key = (tensor.index, tensor.owner)
                plain |= {key} if tensor.flags & TensorFlag.PLAIN else set()
                for step, row in own.rows_of(tensor.seq):
                    digests[key][step][rank], originals[key][step][rank] = int(row["param"]), int(row["before"])
                    written[key][step][rank] = int(row["grad_sum"])
                    computing[key][step][rank] = int(row["flags"]) & DigestFlag.COMPUTING
    for key, by_step in digests.items():
        looks = {step: set(own.values()) for step, own in computing[key].items()}
        whole = {step: dict(values) for step, values in by_step.items()
                 if len(values) == len(peers.ranks) and step in agreeing and len(looks[step]) == 1}  # fmt: skip
        if whole:
            name = _name(gradients, peers, key)
            before, writes = ({step: of[key][step] for step in whole} for of in (originals, written))
            used = frozenset(step for step in whole if looks[step] != {0})
            yield CopyCourse(name, key[1], peers.ranks, whole, before, writes, used, key not in plain)


def _name(gradients: Gradients, peers: ReplicaGroup, key: tuple[int, str]) -> str:
    tensors = gradients.ranks[peers.ranks[0]].tensors.values()
    return next((t.name for t in tensors if t.flags & TensorFlag.COPY and (t.index, t.owner) == key), key[1])


def agreeing_steps(gradients: Gradients, peers: ReplicaGroup) -> set[int]:
    """The steps that every one of the peers has looked at and in which they hold the same parameters."""
    return {step for step, values in _seen_by_all(gradients, peers).items() if len(values) == 1}


def parted_steps(gradients: Gradients, peers: ReplicaGroup) -> set[int]:
    """Those in which they hold different ones."""
    return {step for step, values in _seen_by_all(gradients, peers).items() if len(values) > 1}


def _seen_by_all(gradients: Gradients, peers: ReplicaGroup) -> dict[int, set[int]]:
    """step -> the digests of the parameters, of the steps that all peers have looked at."""
    values: dict[int, dict[int, int]] = defaultdict(dict)
    for rank, updates in gradients.updates(peers).items():
        for update in updates:
            if update.digested:
                values[update.step][rank] = update.number("params")
    return {step: set(own.values()) for step, own in values.items() if len(own) == len(peers.ranks)}


def lives_on_beside(course: CopyCourse) -> bool:
    """Whether it lives on beside the module where it began as that. What becomes the module again is made of it anew now and
    then, on other ranks with a noise of their own: no copy that was to be the same."""
    for rank in course.begun_alike:
        alike = [course.originals[step][rank] == course.digests[step][rank] for step in sorted(course.digests)]
        if False not in alike or True in alike[alike.index(False) :]:
            return False
    return bool(course.begun_alike)
