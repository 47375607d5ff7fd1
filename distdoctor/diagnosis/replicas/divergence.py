"""Where replicas part: the first step, and in it the first thing, that is not the same bits on all ranks that should agree.

What follows from a parting is no news: each optimizer and set of peers has one story, and the story its first parting.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from distdoctor.diagnosis.check import NotApplicable
from distdoctor.diagnosis.derived import derived
from distdoctor.diagnosis.finding import CERTAIN, LIKELY, Confidence
from distdoctor.diagnosis.rank_groups import variants_of
from distdoctor.diagnosis.replicas.gradients import OBSERVED, PLACEMENT, WRAPPER, Gradients, ReplicaGroup
from distdoctor.diagnosis.replicas.rank_gradients import TensorInfo, Update
from distdoctor.diagnosis.replicas.reunion import PATIENCE, next_meeting, weights_are_exchanged
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Recording, SourceLine
from distdoctor.recording.trace.events import Averaging, BackwardRng, Converted, StateLoaded
from distdoctor.recording.trace.layout import DigestFlag, TensorFlag, UpdateFlag

# Steps of local training between two averagings: DiLoCo takes 500. Before that a running job may yet bring its replicas together.
LONGEST_WINDOW = 512
INITIAL, BEFORE, GRADS, PARAMS, STATE = "initial parameters", "parameters before", "gradients", "parameters", "state"
STATE_BEFORE = "state before"
_COLUMN = {
    INITIAL: "param",
    BEFORE: "before",
    STATE_BEFORE: "state_before",
    GRADS: "grad",
    PARAMS: "param",
    STATE: "state",
}
_LEFT = {BEFORE: "param", STATE_BEFORE: "state"}  # what the step before has left
_LANE = {INITIAL: "params", GRADS: "grads", PARAMS: "params", STATE: "state"}
_SUM = {INITIAL: "param_sum", BEFORE: "param_sum", GRADS: "grad_sum", PARAMS: "param_sum"}


@dataclass(frozen=True)
class TensorDifference:
    """One tensor that is not the same everywhere. `variants`: ranks with equal bits, the most numerous first."""

    tensor: TensorInfo
    variants: tuple[tuple[int, ...], ...]
    sums: Mapping[int, int]  # of the words, by rank
    norms: Mapping[int, float]
    none_on: tuple[int, ...] = ()  # ranks on which there was no gradient
    started_equal: bool = False  # it is known to have been equal when the step began

    @property
    def name(self) -> str:
        return self.tensor.name

    def flipped_bit(self, odd: Iterable[int]) -> int | None:
        """Which bit of a 64-bit word of the odd rank differs, when it is a single one."""
        odd = set(odd)
        usual = [value for rank, value in self.sums.items() if rank not in odd]
        strange = [value for rank, value in self.sums.items() if rank in odd]
        if len(odd) != 1 or not usual or len(strange) != 1:
            return None
        for difference in ((strange[0] - usual[0]) % (1 << 64), (usual[0] - strange[0]) % (1 << 64)):
            if difference and difference & (difference - 1) == 0:
                return difference.bit_length() - 1
        return None


@dataclass(frozen=True)
class ReplicaDivergence:
    """The first disagreement of a set of peers.

    `what` is INITIAL, BEFORE or STATE_BEFORE (changed between two steps), GRADS, PARAMS or STATE. `agreed` is the last step that
    was looked at before and at which they agreed (-1: none). `variants` are ranks that agree among themselves, the most
    numerous first; without a majority it `is_tie` and all are odd.
    """

    what: str
    step: int
    agreed: int
    peers: ReplicaGroup
    variants: tuple[tuple[int, ...], ...]
    differences: tuple[TensorDifference, ...]
    compared: int  # tensors
    updates: Mapping[int, Update]
    earlier: Mapping[int, Update]  # of the look before
    started_equal: bool = False  # the parameters are known to have been equal when the step began
    loaded_on: tuple[
        int, ...
    ] = ()  # the ranks that had loaded what differs before the first step, where the others had not
    loaded_at: SourceLine = field(default_factory=SourceLine)

    @property
    def key(self) -> str:
        """What findings name that explain this divergence (`Finding.explains`)."""
        return f"{self.what} of optimizer {self.peers.optimizer}, replicas {self.peers.lane}, step {self.step}"

    @property
    def is_tie(self) -> bool:
        if self.loaded_on:
            return False
        sizes = [len(ranks) for ranks in self.variants]
        return len(sizes) > 1 and sizes[0] <= sizes[1]

    @property
    def odd(self) -> tuple[int, ...]:
        """The ranks that differ from most, or lack what others have loaded; all of them where nothing tells who is right."""
        ranks = (rank for variant in (self.variants if self.is_tie else self.variants[1:]) for rank in variant)
        return tuple(sorted(ranks))

    @property
    def first(self) -> TensorDifference | None:
        """The first tensor that differs, in the order of the optimizer; None when details are no longer kept."""
        return self.differences[0] if self.differences else None

    @property
    def confidence(self) -> Confidence:
        """That they are replicas at all is known, or only observed."""
        return LIKELY if self.peers.by == OBSERVED else CERTAIN

    @property
    def site(self) -> SourceLine:
        """The optimizer's step."""
        return next((u.site for u in self.updates.values() if u.site), SourceLine())

    @property
    def at_ns(self) -> int:
        return min((update.at_ns for update in self.updates.values()), default=0)

    @property
    def exact(self) -> bool:
        """Whether the step is the very first one that differs, rather than the first that was looked at."""
        return self.step - self.agreed <= 1

    @property
    def when(self) -> str:
        """`step 3`, `between steps 4 and 8`, `before the first step`."""
        if self.what == INITIAL:
            return "before the first step"
        return f"step {self.step}" if self.exact else f"between steps {self.agreed} and {self.step}"

    @property
    def who(self) -> str:
        """`rank 1`, or both sides of a tie: `ranks 0 and 1 (two against each other)`."""
        return named(self.odd)

    def counts(self, name: str) -> dict[int, int]:
        """A number of the update, by rank."""
        return {rank: update.number(name) for rank, update in self.updates.items()}

    @cached_property
    def share(self) -> str:
        """`3 of 62 parameters`."""
        return f"{len(self.differences)} of {self.compared} parameters" if self.differences else "parameters"


@dataclass(frozen=True)
class ReplicaDivergences:
    """The first parting of each optimizer and set of peers that has one."""

    streams: ClassVar[frozenset[str]] = frozenset({"gradients"})
    found: tuple[ReplicaDivergence, ...]
    gradients: Gradients

    @classmethod
    def of(cls, recording: Recording) -> ReplicaDivergences:
        gradients = derived(Gradients, recording)
        if not gradients.peers:
            raise NotApplicable("no two ranks are known to be replicas of one another")
        partings = (first_parting(gradients, peers) for peers in gradients.peers)
        return cls(tuple(parting for parting in partings if parting is not None), gradients)


def first_parting(gradients: Gradients, peers: ReplicaGroup) -> ReplicaDivergence | None:
    """Walk the steps that at least two of the peers have looked at, past those in which they were apart for a while."""
    looks = _looks(gradients, peers)
    agreed, earlier, longest, met = -1, dict[int, Update](), 0, -1
    for step in sorted(looks):
        updates = looks[step]
        if step < met:
            continue
        kinds = _kinds(peers, step, met_before=bool(longest))
        found = (_parting(gradients, peers, what, step, agreed, updates, earlier) for what in kinds)
        parting = next((one for one in found if one is not None), None)
        if parting is not None and step != met:
            meeting = next_meeting(gradients, peers, looks, step) if _is_of_the_whole(parting) else None
            if meeting is None:
                apart = max(looks) - step
                by_design = (longest and apart <= PATIENCE * longest) or _is_brought_together(gradients, parting)
                return None if by_design or _may_yet_meet(gradients, parting, apart) else parting
            longest, met = max(longest, meeting - step + 1), meeting
        agreed, earlier = step, updates
    return None


def _may_yet_meet(gradients: Gradients, parting: ReplicaDivergence, steps: int) -> bool:
    """Whether the job still runs, and its first window of local training may be what is seen."""
    running = gradients.recording.job.running
    return running and steps < LONGEST_WINDOW and parting.what != INITIAL and _is_of_the_whole(parting)


def _is_of_the_whole(parting: ReplicaDivergence) -> bool:
    """Whether ranks that train apart for a while would part like this: in most of the tensors, not in one of them, whose odd bit
    the arithmetic of the step may have swallowed."""
    return parting.what not in (STATE, STATE_BEFORE) and 2 * len(parting.differences) >= parting.compared


def _kinds(peers: ReplicaGroup, step: int, *, met_before: bool) -> tuple[str, ...]:
    """What is compared. Of replicas that are only observed nobody knows that their gradients or states have to agree."""
    if step == 0:
        return (INITIAL,)
    if peers.by == OBSERVED:
        return (BEFORE, PARAMS)
    return (GRADS, PARAMS) if met_before else (BEFORE, STATE_BEFORE, GRADS, PARAMS, STATE)


def _looks(gradients: Gradients, peers: ReplicaGroup) -> dict[int, dict[int, Update]]:
    """step -> rank -> what was seen there, of the steps that two of the peers have looked at."""
    looks: dict[int, dict[int, Update]] = defaultdict(dict)
    for rank, own in gradients.updates(peers).items():
        for update in own:
            if update.digested:
                looks[update.step][rank] = update
    return {step: updates for step, updates in looks.items() if len(updates) > 1}


def _is_brought_together(gradients: Gradients, parting: ReplicaDivergence) -> bool:
    return parting.what not in (STATE, STATE_BEFORE) and weights_are_exchanged(gradients, parting.peers, parting.step)


def _parting(
    gradients: Gradients,
    peers: ReplicaGroup,
    what: str,
    step: int,
    agreed: int,
    updates: dict[int, Update],
    earlier: dict[int, Update],
) -> ReplicaDivergence | None:
    if what == STATE and not all(update.has_state for update in updates.values()):
        return None
    column = _LANE.get(what)
    if column is not None and len({update.number(column) for update in updates.values()}) == 1:
        return None
    differences, compared, kept = _differences(gradients, peers, what, step, list(updates))
    if column is None or peers.names:
        if not differences:
            return None
    elif not differences and kept:
        return None  # they hold different parameters, and what they have in common is equal
    started_equal = what == PARAMS and all(d.started_equal for d in differences)
    whole = (
        variants_of({rank: update.number(column) for rank, update in updates.items()})
        if column and not peers.names
        else ()
    )
    variants = whole or variants_of(_joint(differences, updates))
    found = tuple(differences)
    of_optimizer = what in (STATE, STATE_BEFORE) or started_equal
    loaded_on: tuple[int, ...] = ()
    loaded_at = SourceLine()
    if agreed <= 0 and what != GRADS:
        loaded_on, loaded_at = _loaded_by_some(gradients, "optimizer" if of_optimizer else "module", variants, updates)
    variants = tuple(sorted(variants, key=lambda ranks: ranks != loaded_on))  # what was loaded is what was meant
    return ReplicaDivergence(
        what, step, agreed, peers, variants, found, compared, updates, earlier, started_equal, loaded_on, loaded_at
    )


def _loaded_by_some(
    gradients: Gradients, kind: str, variants: tuple[tuple[int, ...], ...], updates: Mapping[int, Update]
) -> tuple[tuple[int, ...], SourceLine]:
    """The ranks that loaded a state before this optimizer's first step, when they are the ones that agree; and where. () when all
    did, or none. The last loads count: a second stage of training may go on from what the first one left."""
    loads = [
        (event.step, rank, event.site)
        for ranks in variants
        for rank in ranks
        for event in gradients.ranks[rank].events(StateLoaded)
        if event.what == kind and rank in updates and event.at_ns <= updates[rank].at_ns
    ]
    last = max((step for step, *_ in loads), default=0)
    sites = {rank: site for step, rank, site in loads if step == last}
    loaded = tuple(sorted(sites))
    return (loaded, sites[loaded[0]]) if len(variants) > 1 and loaded in variants else ((), SourceLine())


def _differences(
    gradients: Gradients, peers: ReplicaGroup, what: str, step: int, ranks: Iterable[int]
) -> tuple[list[TensorDifference], int, bool]:
    """The tensors that differ, how many were compared, and whether every rank still has its details."""
    tensors = gradients.agreeing(peers, on_gradients=what == GRADS)
    here = set(ranks)
    sets = [[rank for rank in alike if rank in here] for alike in gradients.alike(peers, _COLUMN[what])]
    held = [(*gradients.ranks[alike[0]].held(step, peers.optimizer), len(alike)) for alike in sets if alike]
    differing, compared = _screened(tensors, held, _COLUMN[what])
    rows = {rank: gradients.ranks[rank].digests(step, peers.optimizer) for rank in here} if differing else {}
    found = [
        _difference(tensors[name], {rank: own[name] for rank, own in rows.items() if name in own}, what)
        for name in differing
    ]
    return found, compared, all(names for names, *_ in held)


def _screened(
    tensors: Mapping[str, TensorInfo], own: Sequence[tuple[tuple[str, ...], Any, int]], column: str
) -> tuple[list[str], int]:
    """The names of the tensors that are not the same on all who hold them, and how many were compared; a column of ranks at once,
    because there may be ten thousand. `own`: names, rows, and how many ranks have these."""
    at = {name: number for number, name in enumerate(tensors)}
    values, holders = np.zeros((len(own), len(at)), np.uint64), np.zeros((len(own), len(at)), int)
    unreadable = np.zeros(len(at), bool)
    places: dict[tuple[str, ...], tuple[Any, Any]] = {}
    for number, (names, rows, ranks) in enumerate(own):
        if names not in places:
            where = np.array([at.get(name, -1) for name in names], dtype=np.intp)
            places[names] = np.flatnonzero(where >= 0), where[where >= 0]
        mine, where = places[names]
        values[number, where] = rows[column][mine]
        holders[number, where] = ranks
        unreadable[where] |= (rows["flags"][mine] & DigestFlag.UNREADABLE) != 0
    usable = (holders.sum(0) > 1) & ~unreadable
    if column in ("before", "state", "state_before"):  # 0: not digested in this look, or kept on some ranks only (ZeRO)
        usable &= ((values != 0) | (holders == 0)).all(0)
    first = values[holders.argmax(0), np.arange(len(at))] if own else values.sum(0)
    differs = usable & ((values != first) & (holders > 0)).any(0)
    return [name for name, number in at.items() if differs[number]], int(usable.sum())


def _difference(tensor: TensorInfo, held: Mapping[int, Any], what: str) -> TensorDifference:
    values = {rank: int(row[_COLUMN[what]]) for rank, row in held.items()}
    norms = {rank: float(row["norm"]) for rank, row in held.items()}
    sums = {rank: int(row[_SUM[what]]) for rank, row in held.items()} if what in _SUM else {}
    none_on = tuple(rank for rank, value in values.items() if not value) if what == GRADS else ()
    befores = {int(row["before"]) for row in held.values()}
    equal_before = len(befores) == 1 and befores != {0}
    return TensorDifference(tensor, variants_of(values), sums, norms, none_on, equal_before)


def _joint(differences: Iterable[TensorDifference], ranks: Iterable[int]) -> dict[int, int]:
    """One value for each rank over several tensors."""
    joint = dict.fromkeys(ranks, 0)
    for difference in differences:
        for number, variant in enumerate(difference.variants):
            for rank in variant:
                joint[rank] = hash((joint[rank], number))
    return joint


# -- what is behind a parting ------------------------------------------------------------------------------------------------


def scalers_differ(parting: ReplicaDivergence) -> bool:
    """Whether the ranks have skipped other steps, or scale their losses differently."""
    return len({(update.number("skipped"), update.value("scale")) for update in parting.updates.values()}) > 1


def skipped_by(parting: ReplicaDivergence) -> tuple[int, ...]:
    """The ranks that come to this step after more reduced backward passes than others: they have skipped a step that the others
    made. () where that is not so, or where a GradScaler did it."""
    if parting.what == INITIAL or not parting.exact or scalers_differ(parting):
        return ()
    passes = parting.counts("synced" if parting.peers.by == WRAPPER else "backwards")
    return tuple(rank for rank, count in passes.items() if 0 < min(passes.values()) < count)


def is_outside_the_reducer(parting: ReplicaDivergence) -> bool:
    """Whether every gradient that differs belongs to a parameter that the wrapper does not average."""
    return bool(parting.differences) and all(d.tensor.flags & TensorFlag.OUTSIDE for d in parting.differences)


def uses_differ(parting: ReplicaDivergence) -> bool:
    """Whether a gradient is there on some of the ranks only."""
    return any(difference.none_on for difference in parting.differences)


def noise_differs(parting: ReplicaDivergence, gradients: Gradients) -> bool:
    """Whether ranks that share the layers of one model (tensor parallel) drew dropout from different random states."""
    told = (averaging.ranks for own in gradients.ranks.values() for averaging in own.events(Averaging))
    reading_apart = map(frozenset, {id(ranks): ranks for ranks in told}.values())  # equal texts are read as one value
    if parting.peers.by != PLACEMENT or any(ranks.issuperset(parting.peers.ranks) for ranks in reading_apart):
        return False
    by_rank = {rank: noise_of(gradients, rank) for rank in parting.updates}
    passes = set.intersection(*(set(noise) for noise in by_rank.values()))
    return any(len({noise[number] for noise in by_rank.values()}) > 1 for number in passes)


def noise_of(gradients: Gradients, rank: int, *, dropout_only: bool = True) -> dict[int, str]:
    """backward pass -> digest of the random state of this rank when it began, where a dropout was active, or else where anything
    had been drawn since the pass before."""
    begun = gradients.ranks[rank].events(BackwardRng)
    return {one.backward: one.digest for one in begun if one.dropout or not dropout_only}


def single_bit(parting: ReplicaDivergence) -> int | None:
    """The bit, when a single flipped one on one rank explains the parting."""
    if len(parting.differences) != 1:
        return None
    first = parting.differences[0]
    for rank in parting.odd:
        bit = first.flipped_bit([rank])
        if bit is not None:
            return bit
    return None


def differing_settings(parting: ReplicaDivergence) -> bool:
    """Whether the optimizers work with different numbers, now or at the look before."""
    return any(
        len({update.number("hyper") for update in updates.values()}) > 1
        for updates in (parting.updates, parting.earlier)
        if updates
    )


def differing_state(parting: ReplicaDivergence) -> bool:
    """Whether equal parameters and equal gradients became different parameters because the optimizers remember differently."""
    updates = parting.updates.values()
    return (
        parting.what == PARAMS
        and parting.started_equal
        and all(update.flags & UpdateFlag.STATE for update in updates)
        and len({update.number("state") for update in updates}) > 1
    )


def was_converted(parting: ReplicaDivergence, gradients: Gradients) -> bool:
    """Whether a wrapped module was moved or cast on any of the ranks before this step."""
    return any(
        converted.step < parting.step
        for rank in parting.peers.ranks
        if rank in gradients.ranks
        for converted in gradients.ranks[rank].events(Converted)
    )


def changed_between_steps(parting: ReplicaDivergence, gradients: Gradients) -> tuple[int, ...]:
    """The ranks that find other parameters, or another state, than their own last step has left; () when all do, or nobody can
    tell."""
    if parting.what not in _LEFT or not parting.exact:
        return ()
    found_now, left_then = _COLUMN[parting.what], _LEFT[parting.what]
    optimizer, found = parting.peers.optimizer, []
    for rank in parting.updates:
        now = gradients.ranks[rank].digests(parting.step, optimizer)
        then = gradients.ranks[rank].digests(parting.agreed, optimizer)
        names = [d.name for d in parting.differences if d.name in now and d.name in then]
        if any(int(then[name][left_then]) not in (0, int(now[name][found_now])) for name in names):
            found.append(rank)
    return tuple(found) if len(found) < len(parting.updates) else ()
