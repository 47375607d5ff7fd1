"""Where replicas part: the first step, and in it the first thing, that is not the same bits on all ranks that should agree.

What follows from a parting is no news: each optimizer and set of peers has one story, and the story its first parting.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar

from distdoctor.diagnosis.check import NotApplicable
from distdoctor.diagnosis.derived import derived
from distdoctor.diagnosis.finding import CERTAIN, LIKELY, POSSIBLE, Confidence
from distdoctor.diagnosis.rank_groups import variants_of
from distdoctor.diagnosis.replicas.carried_on import are_carried_on, is_old_news, left_before
from distdoctor.diagnosis.replicas.gradients import OBSERVED, PLACEMENT, WRAPPER, Gradients, ReplicaGroup
from distdoctor.diagnosis.replicas.own_parts import are_whole_modules
from distdoctor.diagnosis.replicas.rank_gradients import Update
from distdoctor.diagnosis.replicas.reunion import (
    PATIENCE,
    is_felt,
    next_meeting,
    weights_are_exchanged,
    weights_are_mixed,
)
from distdoctor.diagnosis.replicas.tensor_differences import (
    BEFORE,
    COLUMN,
    GRADS,
    INITIAL,
    PARAMS,
    STATE,
    STATE_BEFORE,
    TensorDifference,
    differences_of,
    joint,
)
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Recording, SourceLine
from distdoctor.recording.trace.events import Averaging, BackwardRng, Converted, StateLoaded, Wrapped
from distdoctor.recording.trace.layout import TensorFlag, UpdateFlag

# Steps of local training between two averagings: DiLoCo takes 500. Before that a running job may yet bring its replicas together.
LONGEST_WINDOW = 512
_LEFT = {BEFORE: "param", STATE_BEFORE: "state"}  # what the step before has left
_LANE = {INITIAL: "params", GRADS: "grads", PARAMS: "params", STATE: "state"}


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
    # the ranks that had loaded what differs before the first step, where the others had not
    loaded_on: tuple[int, ...] = ()
    loaded_at: SourceLine = field(default_factory=SourceLine)
    # of the first of each variant, where it differs from the start: the line that makes it a replica (a wrapper,
    # `distdoctor.watch`), else its first step
    said_at: Mapping[int, SourceLine] = field(default_factory=dict)
    doubt: Confidence = CERTAIN  # no more is known than that, although the ranks are known to be replicas
    unseen: int = 0  # peers of which nothing is on record

    @property
    def key(self) -> str:
        """What findings name that explain this divergence (`Finding.explains`)."""
        return f"{self.what} of optimizer {self.peers.optimizer}, replicas {self.peers.lane}, step {self.step}"

    @property
    def is_tie(self) -> bool:
        if self.loaded_on:
            return False
        sizes = [len(ranks) for ranks in self.variants]
        return len(sizes) > 1 and sizes[0] <= sizes[1] + self.unseen

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
        """That they are replicas at all is known, or only observed; and so it is of what differs."""
        words = (self.doubt, LIKELY) if self.peers.by == OBSERVED else (self.doubt,)
        return max(words)  # of the words `possible` is the last

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
    """The first parting of each optimizer and set of peers that has one. `by_design`: those who train apart for a while."""

    streams: ClassVar[frozenset[str]] = frozenset({"gradients"})
    found: tuple[ReplicaDivergence, ...]
    gradients: Gradients
    by_design: tuple[ReplicaGroup, ...] = ()

    @classmethod
    def of(cls, recording: Recording) -> ReplicaDivergences:
        gradients = derived(Gradients, recording)
        if not gradients.peers:
            raise NotApplicable("no two ranks are known to be replicas of one another")
        walks = [_Walk(gradients, peers) for peers in gradients.peers]
        every = tuple(parting for walk in walks if (parting := walk.first_parting()) is not None)
        found = tuple(parting for parting in every if not is_old_news(gradients, parting, every))
        return cls(found, gradients, tuple(walk.peers for walk in walks if walk.apart))


def first_parting(gradients: Gradients, peers: ReplicaGroup) -> ReplicaDivergence | None:
    return _Walk(gradients, peers).first_parting()


class _Walk:
    """The way through the steps that at least two of the peers have looked at, past those in which they were apart by design."""

    def __init__(self, gradients: Gradients, peers: ReplicaGroup) -> None:
        self.gradients, self.peers = gradients, peers
        self.looks = _looks(gradients, peers)
        self.apart = False  # they train apart for a while, and are brought together
        self._own_states = False  # each keeps a part of the optimizer's state that no other one uses

    def first_parting(self) -> ReplicaDivergence | None:
        agreed: dict[int, int] = {}  # the last step of each rank in which it did
        earlier, longest, met = dict[int, Update](), 0, -1
        for step in sorted(self.looks):
            updates = self.looks[step]
            if step < met:
                continue
            since = min(agreed.get(rank, -1) for rank in updates)
            parting = self._parting(step, since, updates, earlier, met_before=bool(longest))
            if (
                parting is not None
                and parting.what == INITIAL
                and are_carried_on(self.gradients, self.peers, parting.differences)
            ):
                agreed = dict.fromkeys(updates, 0)  # only a number: the first step shows what was changed before it
                continue
            if parting is not None and step != met:
                whole = _is_of_the_whole(parting)
                meeting = (
                    next_meeting(self.gradients, self.peers, self.looks, step, parting.variants) if whole else None
                )
                if meeting is None:
                    apart = max(self.looks) - step
                    by_design = (longest and apart <= PATIENCE * longest) or self._is_brought_together(parting)
                    self.apart |= bool(by_design) or _may_yet_meet(self.gradients, parting, apart)
                    return None if self.apart else _with_doubt(self.gradients, parting)
                self.apart = True
                longest, met = max(longest, meeting - step + 1), meeting
            agreed, earlier = {**agreed, **dict.fromkeys(updates, step)}, updates
        return None

    def _parting(
        self, step: int, agreed: int, updates: dict[int, Update], earlier: dict[int, Update], *, met_before: bool
    ) -> ReplicaDivergence | None:
        for what in _kinds(self.peers, step, met_before=met_before):
            of_state = what in (STATE, STATE_BEFORE)
            if of_state and self._own_states:
                continue
            found = _parting(self.gradients, self.peers, what, step, agreed, updates, earlier)
            if found is None or not of_state:
                if found is not None:
                    return found
                continue
            felt = is_felt(self.gradients, self.peers, self.looks, step + (what == STATE), found.variants)
            broken = _had_one_state(earlier) and (len(found.differences) == 1 or not _is_most(found))
            self._own_states = felt is False and not broken
            if felt or broken or (felt is None and not self.gradients.recording.job.running):
                return found if felt or found.loaded_on else replace(found, doubt=LIKELY)
        return None

    def _is_brought_together(self, parting: ReplicaDivergence) -> bool:
        if parting.what in (STATE, STATE_BEFORE):
            return False
        if weights_are_exchanged(self.gradients, self.peers, parting.step):
            return True
        return parting.what == GRADS and weights_are_mixed(self.gradients, self.peers, self.looks)


def _had_one_state(updates: Mapping[int, Update]) -> bool:
    """Whether all ranks had the same state of the optimizer in this look, so that it is none that each keeps for itself."""
    states = {update.number("state") if update.has_state else 0 for update in updates.values()}
    return len(states) == 1 and states != {0}


def _with_doubt(gradients: Gradients, parting: ReplicaDivergence) -> ReplicaDivergence:
    """What is reduced by hand is known by its shapes: a part whose shapes were never sent was forgotten, or is each rank's own,
    as heads are for tasks of their own."""
    own, names = gradients.not_sent(parting.peers), {difference.name for difference in parting.differences}
    if not names or not names <= own:
        return parting
    every = gradients.agreeing(parting.peers, on_gradients=True)
    return replace(parting, doubt=POSSIBLE if are_whole_modules(every, own) else LIKELY)


def _may_yet_meet(gradients: Gradients, parting: ReplicaDivergence, steps: int) -> bool:
    """Whether the job still runs, and its first window of local training may be what is seen."""
    running = gradients.recording.job.running
    return running and steps < LONGEST_WINDOW and parting.what != INITIAL and _is_of_the_whole(parting)


def _is_of_the_whole(parting: ReplicaDivergence) -> bool:
    """Whether ranks that train apart for a while would part like this: in most of the tensors, not in one of them, whose odd bit
    the arithmetic of the step may have swallowed."""
    return parting.what not in (STATE, STATE_BEFORE) and _is_most(parting)


def _is_most(parting: ReplicaDivergence) -> bool:
    return 2 * len(parting.differences) >= parting.compared


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
    by_name = bool(peers.names or gradients.other_orders(peers))
    column = None if by_name else _LANE.get(what)
    if column is not None and len({update.number(column) for update in updates.values()}) == 1:
        return None
    differences, compared, kept = differences_of(gradients, peers, what, step, list(updates))
    if column is None:
        if not differences:
            return None
    elif not differences and kept:
        return None  # they hold different parameters, and what they have in common is equal
    started_equal = what == PARAMS and all(d.started_equal for d in differences)
    whole = variants_of({rank: update.number(column) for rank, update in updates.items()}) if column else ()
    variants = whole or variants_of(joint(differences, updates))
    found = tuple(differences)
    of_optimizer = what in (STATE, STATE_BEFORE) or started_equal
    loaded_on: tuple[int, ...] = ()
    loaded_at = SourceLine()
    if agreed <= 0 and what != GRADS:
        loaded_on, loaded_at = _loaded_by_some(gradients, "optimizer" if of_optimizer else "module", variants, updates)
    variants = tuple(sorted(variants, key=lambda ranks: ranks != loaded_on))  # what was loaded is what was meant
    firsts = [ranks[0] for ranks in variants] if what == INITIAL else []
    said_at = {rank: site for rank in firsts if (site := _said_at(gradients, peers, rank))}
    unseen = sum(rank not in gradients.ranks for rank in peers.ranks)
    return ReplicaDivergence(
        what,
        step,
        agreed,
        peers,
        variants,
        found,
        compared,
        updates,
        earlier,
        started_equal,
        loaded_on,
        loaded_at,
        said_at,
        unseen=unseen,
    )


def _said_at(gradients: Gradients, peers: ReplicaGroup, rank: int) -> SourceLine:
    """The line that makes this rank a replica of its peers, else that of the first step; none where neither is known."""
    own = gradients.ranks[rank]
    said: list[Wrapped | Averaging] = [*own.events(Wrapped), *own.events(Averaging)]
    words = (event.site for event in said if event.ranks == peers.ranks)
    steps = (update.site for update in gradients.updates(peers)[rank])
    return next((site for site in (*words, *steps) if site), SourceLine())


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


def _left_by_another(parting: ReplicaDivergence, gradients: Gradients) -> dict[int, dict[str, int]]:
    """rank -> parameter -> what another optimizer's last step left, where this one goes on with it in its first step."""
    is_first = parting.what == BEFORE and parting.agreed <= 0
    if not is_first or not are_carried_on(gradients, parting.peers, parting.differences):
        return {}
    return left_before(gradients, parting.updates, [difference.name for difference in parting.differences])


def changed_between_steps(parting: ReplicaDivergence, gradients: Gradients) -> tuple[int, ...]:
    """The ranks that find other parameters, or another state, than their own last step has left; () when all do, or nobody can
    tell."""
    if parting.what not in _LEFT or not parting.exact:
        return ()
    found_now, left_then = COLUMN[parting.what], _LEFT[parting.what]
    optimizer, found = parting.peers.optimizer, []
    left = _left_by_another(parting, gradients)
    for rank in parting.updates:
        now = gradients.ranks[rank].digests(parting.step, optimizer)
        rows = gradients.ranks[rank].digests(parting.agreed, optimizer)
        then = left[rank] if rank in left else {name: int(row[left_then]) for name, row in rows.items()}
        names = [d.name for d in parting.differences if d.name in now and d.name in then]
        if any(then[name] not in (0, int(now[name][found_now])) for name in names):
            found.append(rank)
    return tuple(found) if len(found) < len(parting.updates) else ()
