"""The fact: from which save, of an earlier run or its own, a run goes on, and which pieces of that state are not what they were.

How it is known: a run that goes on begins with the weights of the other, to the bit. Weights that training has not changed prove
nothing and are left out. A run whose weights are all others is compared only where it has read what the other had written.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, Self

from distdoctor.diagnosis.check import NotApplicable
from distdoctor.diagnosis.checkpoint.misplaced import MisplacedShards, misplaced_shards
from distdoctor.recording.recording import RankTrace, Recording, SourceLine
from distdoctor.recording.states import StateSnapshot
from distdoctor.recording.trace.events import Loading, StateLoaded
from distdoctor.recording.trace.state_file import (
    AGAIN,
    BESIDE,
    BUFFERS,
    COPIES,
    LR,
    MOMENTS,
    OWN,
    POSITION,
    SAVE,
    SCALE,
    SCHEDULE,
    START,
    UPDATES,
    WEIGHTS,
)

ROUNDED, RNG, AHEAD = "rounded weights", "random state", "schedule ahead"
LEAST_GAP = 0.01  # of a learning rate: below it, one step of a schedule may lie between the save and the start
LEAST_STEPS = 2  # of a schedule
LEAST_LOOKS = 3  # in which ranks differ in what each keeps for itself
TWICE = 1.5  # times the step at which it was saved: it was restored, and then stepped up to there once more
# Schedules that work out the rate from their counter alone. Others change the rate that they find, and tell nothing by it.
BY_COUNTER = frozenset({"LambdaLR", "OneCycleLR", "CyclicLR", "CosineAnnealingWarmRestarts"})
NEARER = 4  # times as near to the rate that was saved as to that of the first start
LEAST_SAVED = 4  # steps, beyond which one more step of a schedule that counts samples doubles nothing


class Piece(NamedTuple):
    """One piece of state that differs. `names`: of the tensors, the first ones; `words`: then and now."""

    kind: str
    names: tuple[str, ...]
    differing: int
    of: int
    words: str = ""


class StateOfAnother(NamedTuple):
    """What a rank begins with in objects of the user's own, and which is, to the bit, what another one had saved of its own.

    `apart`: in how many looks the two differed in it, and in no later one they agreed. `own_was_saved`: another value."""

    save: StateSnapshot
    names: tuple[str, ...]
    apart: int
    own_was_saved: bool


@dataclass(frozen=True)
class Continuation:
    """One rank goes on from `save`. `initial` is the start of the run that saved, where it is known.

    `restored`: kinds of state that are there as they were and that only a resumption brings: buffers come with the weights.
    """

    rank: int
    start: StateSnapshot
    save: StateSnapshot
    initial: StateSnapshot | None
    pieces: tuple[Piece, ...]
    restored: tuple[str, ...]
    of_others: tuple[StateOfAnother, ...] = ()

    @property
    def is_another_training(self) -> bool:
        """It has the weights alone, and another learning rate than the one with which that run began and saved: a run that goes
        on would have the same. One that moved then may be anywhere now, and tells nothing. Or a part of the model was exchanged
        for another one: a new head. Or it has none of the weights, and begins with those of a copy (an average) that was saved.
        """
        if not {*self.restored} <= {COPIES} or self.start.document.resumes:
            return False
        mine, saved = self.start.digests(WEIGHTS).keys(), self.save.digests(WEIGHTS).keys()
        if mine - saved and saved - mine:
            return True
        weights = set(self.start.digests(WEIGHTS).values())
        if weights.isdisjoint(self.save.digests(WEIGHTS).values()) and weights & {*self.save.digests(COPIES).values()}:
            return True
        if self.initial is None or self.restored:
            return False
        first, then, now = (one.document.numbers for one in (self.initial, self.save, self.start))
        return not _lr_differs(first, then) and _lr_differs(now, then)


@dataclass(frozen=True)
class Restored:
    """Every rank of this run that goes on from an earlier one, or from a save of its own."""

    streams: ClassVar[frozenset[str]] = frozenset({"checkpoints"})
    ranks: Mapping[int, Continuation]
    misplaced: MisplacedShards | None = None

    @classmethod
    def of(cls, recording: Recording) -> Self:
        attempt = recording.job.attempt
        starts = {one.rank: one for one in recording.states if one.document.when == START and one.attempt == attempt}
        before = [*recording.earlier_states, *(one for one in recording.states if one.attempt < attempt)]
        moments = _moments(before)
        if starts and moments:
            loads = (event for log in recording.ranks.values() for event in log.noted(Loading))
            read = {event.path for event in loads if not event.step}  # later it reads what it has written itself
            found, misplaced = _continued(starts, moments, _Starts(before), read), misplaced_shards(starts, before)
            if found or misplaced:
                logs = recording.ranks
                return cls({rank: _as_it_went_on(one, logs.get(rank)) for rank, one in found.items()}, misplaced)
        own = [one for one in recording.states if one.attempt == attempt]
        again = {one.rank: one for one in own if one.document.when == AGAIN}
        if not (starts and moments) and not again:
            raise NotApplicable("no earlier run of this program left a save beside this one")
        asked = {rank for rank, one in again.items() if _loaded_an_optimizer(recording.ranks.get(rank), one, own)}
        return cls(_gone_on_in_one_run(again, own, asked))


class _Moment(NamedTuple):
    """The saves of all ranks at one step of one run."""

    saves: Mapping[int, StateSnapshot]
    wall_ns: int

    def for_rank(self, rank: int) -> StateSnapshot | None:
        """Its own save, or that of another rank which held the same."""
        own = self.saves.get(rank)
        if own is not None:
            return own
        other = self.saves[min(self.saves)]
        return None if other.document.sharded else other


class _Starts:
    """The starts of earlier runs."""

    def __init__(self, snapshots: list[StateSnapshot]) -> None:
        self._by_run = {(one.run, one.attempt, one.rank): one for one in snapshots if one.document.when == START}

    def of(self, save: StateSnapshot, rank: int) -> StateSnapshot | None:
        """Of the run that saved: of this rank if it is known, else of the rank that saved."""
        own = self._by_run.get((save.run, save.attempt, rank))
        return own or self._by_run.get((save.run, save.attempt, save.rank))


def _moments(snapshots: list[StateSnapshot]) -> list[_Moment]:
    """The newest first."""
    found: dict[tuple[str, int, int], dict[int, StateSnapshot]] = {}
    for one in snapshots:
        if one.document.when == SAVE:
            found.setdefault((one.run, one.attempt, one.document.step), {})[one.rank] = one
    moments = [_Moment(saves, max(one.document.wall_ns for one in saves.values())) for saves in found.values()]
    return sorted(moments, key=lambda one: -one.wall_ns)


def _continued(
    starts: Mapping[int, StateSnapshot], moments: list[_Moment], initial: _Starts, read: set[str]
) -> dict[int, Continuation]:
    """From the moment with the most weights that are the same; from one whose file was read, where no weights are."""

    def share(moment: _Moment) -> float:
        saves = {rank: moment.for_rank(rank) for rank in starts}
        return sum(_share(starts[rank], save, initial.of(save, rank)) for rank, save in saves.items() if save)

    best = max(moments, key=share)  # of equals the first, which is the newest
    if not share(best):
        loaded = [one for one in moments if any(read & set(save.document.paths) for save in one.saves.values())]
        if not loaded:
            return {}
        best = loaded[0]
    found = {}
    for rank, start in starts.items():
        save = best.for_rank(rank)
        if save is not None:
            compared = _compared(rank, start, save, initial.of(save, rank))
            found[rank] = replace(compared, of_others=tuple(_of_others(start, best.saves, starts, initial)))
    return found


def _as_it_went_on(one: Continuation, log: RankTrace | None) -> Continuation:
    """Without a schedule that begins anew and counts on from where the other was: `lambda step: rate(done + step)`."""
    pieces = tuple(piece for piece in one.pieces if piece.kind != SCHEDULE or not _counts_on(piece, one, log))
    return replace(one, pieces=pieces)


def _counts_on(piece: Piece, one: Continuation, log: RankTrace | None) -> bool:
    """Whether the rate, once this run's schedule has set it, is about what it was in the save, and not what it was at first."""
    if log is None or one.initial is None or one.start.document.schedule not in BY_COUNTER:
        return False
    number = piece.names[0].partition(" ")[2]
    now, then, first = (each.document.numbers.get(f"{LR} {number}") for each in (one.start, one.save, one.initial))
    rates = [float(row["lr"]) for row in log.rows("updates") if row["step"] and str(int(row["optimizer"])) == number]
    moved = next((rate for rate in rates if rate != now), None)
    if then is None or first is None or moved is None:
        return False
    return abs(moved - then) * NEARER < abs(moved - first)


def _loaded_an_optimizer(log: RankTrace | None, again: StateSnapshot, own: list[StateSnapshot]) -> bool:
    """Whether a rank has read what was saved in this run, and given an optimizer a state, before its training began again."""
    if log is None:
        return False
    saved = {path for one in own if one.document.when == SAVE for path in one.document.paths}
    until = again.document.wall_ns - log.monotonic_to_wall_ns
    read = [one.at_ns for one in log.noted(Loading) if one.path in saved and one.at_ns < until]
    given = (one.at_ns for one in log.noted(StateLoaded) if one.what == "optimizer" and one.at_ns < until)
    return bool(read) and any(at_ns > read[-1] for at_ns in given)


def _gone_on_in_one_run(
    again: Mapping[int, StateSnapshot], own: list[StateSnapshot], asked: Collection[int]
) -> dict[int, Continuation]:
    """Ranks that built their optimizer anew and brought back weights and moments, but not the schedule or the copies of the model
    that were saved with them; or weights and the position of a new schedule, but not the moments; or weights alone, though they
    are among those that `asked` for the optimizer's state.

    A new optimizer for the same weights, with a schedule that begins, is a second stage of training, and says nothing.
    """
    began = min((one.document.wall_ns for one in again.values()), default=0)
    moments = _moments([one for one in own if one.document.wall_ns < began])
    found = _continued(again, moments, _Starts(own), set()) if moments else {}
    forgot = {
        rank: [piece for piece in one.pieces if _was_saved(piece, one) or (rank in asked and _is_gone(piece))]
        for rank, one in found.items()
    }
    return {
        rank: replace(one, pieces=tuple(forgot[rank]))
        for rank, one in found.items()
        if (forgot[rank] or one.of_others)
        and (rank in asked or MOMENTS in one.restored or SCHEDULE in one.restored or not one.save.digests(MOMENTS))
        and not any(piece.kind in (WEIGHTS, ROUNDED) for piece in one.pieces)
    }


def _is_gone(piece: Piece) -> bool:
    return piece.kind == MOMENTS and piece.differing == piece.of and piece.words == "none"


def _was_saved(piece: Piece, one: Continuation) -> bool:
    """Whether the save is known to hold this piece besides weights and moments, or whoever goes on from it needs the moments."""
    if piece.kind == MOMENTS:
        return SCHEDULE in one.restored
    if piece.kind == COPIES:
        return one.save.document.holds_copies and _begin_as_weights(one)
    return piece.kind in (BESIDE, OWN, AHEAD, UPDATES) or (piece.kind == SCHEDULE and one.save.document.holds_schedule)


def _begin_as_weights(one: Continuation) -> bool:
    """Whether all copies of the model are what its weights are, though in the save they were not."""
    now, then = one.start.digests(COPIES), one.save.digests(COPIES)
    weights, saved = set(one.start.digests(WEIGHTS).values()), set(one.save.digests(WEIGHTS).values())
    return bool(now) and set(now.values()) <= weights and not set(then.values()) <= saved


def _share(start: StateSnapshot, save: StateSnapshot, initial: StateSnapshot | None) -> float:
    trained = _changed(WEIGHTS, save, initial)
    same = sum(start.digests(WEIGHTS).get(name) == digest for name, digest in trained.items())
    return same / len(trained) if trained else 0.0


def _changed(kind: str, save: StateSnapshot, initial: StateSnapshot | None) -> Mapping[str, str]:
    """What training had changed when it was saved."""
    before = initial.digests(kind) if initial is not None else {}
    return {name: digest for name, digest in save.digests(kind).items() if before.get(name) != digest}


def _compared(rank: int, start: StateSnapshot, save: StateSnapshot, initial: StateSnapshot | None) -> Continuation:
    pieces, restored = [], []
    for kind in (WEIGHTS, BUFFERS, MOMENTS, COPIES):
        expected = _changed(kind, save, initial)
        piece = _tensors(kind, expected, start)
        if piece is not None:
            pieces.append(piece)
        elif expected and kind not in (WEIGHTS, BUFFERS):
            restored.append(kind)
    pieces += _beside(start, save)
    pieces += _own(start, save, initial)
    pieces += _numbers(start, save, initial)
    pieces += _counters(start, save, initial, COPIES in restored or _is_brought_back(start, save))
    if any(piece.kind == SCHEDULE for piece in pieces) is False and _has_moved(SCHEDULE, start, initial):
        restored.append(SCHEDULE)
    pieces += _noise(start, save, initial)
    return Continuation(rank, start, save, initial, tuple(pieces), tuple(restored))


def _tensors(kind: str, expected: Mapping[str, str], start: StateSnapshot) -> Piece | None:
    now = start.digests(kind)
    if kind in (BUFFERS, COPIES):  # what is not there any more was renamed or dropped on purpose
        expected = {name: digest for name, digest in expected.items() if name in now}
    # Copies are numbered as they were made: of a model that was built anew the first ones may not be gone yet.
    somewhere = set(now.values()) if kind == COPIES else set[str]()
    odd = tuple(name for name, digest in expected.items() if now.get(name) != digest and digest not in somewhere)
    if not odd:
        return None
    rounded = kind == WEIGHTS and bool(start.document.fits) and len(odd) == len(expected)
    words = start.document.fits if rounded else ("none" if not any(name in now for name in odd) else "")
    return Piece(ROUNDED if rounded else kind, odd[:3], len(odd), len(expected), words)


def _beside(start: StateSnapshot, save: StateSnapshot) -> Iterator[Piece]:
    """Copies of the model in the save of this very rank, none of which is anywhere in the process that goes on from it."""
    held, saved = start.document.digests.get(BESIDE), _saved_beside(save)
    if held is None or not saved or save.rank != start.rank:
        return
    if not {name.rpartition(" ")[2] for name in held} <= {name.rpartition(" ")[2] for name in saved}:
        return  # they may have been brought back in another type
    if _alive(start).isdisjoint(saved.values()):
        names = tuple(dict.fromkeys(name.rsplit(" ", 2)[0] for name in saved))
        yield Piece(BESIDE, names[:3], len(saved), len(saved), "none")


def _own(start: StateSnapshot, save: StateSnapshot, initial: StateSnapshot | None) -> Iterator[Piece]:
    """What this very rank had saved of the user's own objects, and begins as at first."""
    if initial is None or not initial.rank == start.rank == save.rank:
        return
    first, now, saved = initial.digests(OWN), start.digests(OWN), _changed(OWN, save, initial)
    expected = [name for name in saved if name in first and name in now]
    anew = [name for name in expected if now[name] == first[name]]
    if anew:
        yield Piece(OWN, tuple(anew[:3]), len(anew), len(expected))


def _of_others(
    start: StateSnapshot, saves: Mapping[int, StateSnapshot], starts: Mapping[int, StateSnapshot], initial: _Starts
) -> Iterator[StateOfAnother]:
    """What other ranks had saved of the user's own objects, and this one begins with, though it keeps that for itself."""
    now, own = start.digests(OWN), saves.get(start.rank)
    mine = own.digests(OWN) if own is not None else {}
    for rank, save in saves.items():
        then = initial.of(save, rank)
        if rank == start.rank or then is None:
            continue
        saved = {name: digest for name, digest in _changed(OWN, save, then).items() if name in then.digests(OWN)}
        names = [name for name, digest in saved.items() if now.get(name) == digest != mine.get(name, "")]
        looks = [(initial.of(save, rank), initial.of(save, start.rank)), (starts.get(rank), start)]
        apart = {name: sum(_looks_apart(one, other, name) for one, other in looks) for name in names}
        kept = tuple(name for name in names if name in mine or apart[name] >= LEAST_LOOKS)
        if kept:
            yield StateOfAnother(save, kept, apart[kept[0]], kept[0] in mine)


def _looks_apart(one: StateSnapshot | None, other: StateSnapshot | None, name: str) -> int:
    """In how many looks two ranks differed in it; 0 where they have agreed after that."""
    if one is None or other is None or one.rank == other.rank:
        return 0
    mine, its = one.document.looks, other.document.looks
    common = sorted(int(look) for look in mine.keys() & its.keys() if look.isdecimal())
    differ = [mine[str(look)].get(name) != its[str(look)].get(name) for look in common]
    since = differ.index(True) if True in differ else len(differ)
    return len(differ) - since if all(differ[since:]) else 0


def _is_brought_back(start: StateSnapshot, save: StateSnapshot) -> bool:
    """Whether copies that no module holds are in the save, and are somewhere in the process that goes on from it."""
    return not _alive(start).isdisjoint(_saved_beside(save).values())


def _saved_beside(save: StateSnapshot) -> dict[str, str]:
    weights = set(save.digests(WEIGHTS).values())
    return {name: digest for name, digest in save.digests(BESIDE).items() if digest not in weights}


def _alive(start: StateSnapshot) -> set[str]:
    return {digest for kind in start.document.digests.values() for digest in kind.values()}


def _numbers(start: StateSnapshot, save: StateSnapshot, initial: StateSnapshot | None) -> Iterator[Piece]:
    now, then = start.document.numbers, save.document.numbers
    first = initial.document.numbers if initial is not None else {}
    for name in then.keys() & now.keys():
        kind, one, other = name.partition(" ")[0], now[name], then[name]
        words = f"{other:g} when it was saved, {one:g} now"
        if kind == SCALE and one != other:
            yield Piece(SCALE, (name,), 1, 1, words)
        if kind == SCHEDULE and one + LEAST_STEPS <= other:
            yield Piece(SCHEDULE, (name,), 1, 1, f"step {words}")
        if kind == SCHEDULE and one >= max(other + LEAST_STEPS, TWICE * other) and other:
            yield Piece(AHEAD, (name,), 1, 1, f"step {words}")
    if not any(name.startswith(SCHEDULE) for name in then) and _lr_differs(now, then):
        again = [name for name in then if name.startswith(LR) and now.get(name) == first.get(name) != then[name]]
        if again:
            yield Piece(
                LR, tuple(again), 1, 1, f"{then[again[0]]:g} when it was saved, {now[again[0]]:g} now, as at first"
            )


def _counters(
    start: StateSnapshot, save: StateSnapshot, initial: StateSnapshot | None, has_copies: bool
) -> Iterator[Piece]:
    """Counters of the user's own objects: a schedule's that has moved twice, by which the learning rate is another; an average's
    that begins anew, though the average was brought back."""
    now, then = start.document.numbers, save.document.numbers
    first = initial.document.numbers if initial is not None else {}
    moved = [name for name in first.keys() & then.keys() & now.keys() if then[name] >= first[name] + LEAST_STEPS]
    ahead = save.document.step >= LEAST_SAVED and not any(name.startswith(SCHEDULE) for name in then)
    for name in sorted(moved):
        kind, what = name.split(" ", 1)
        words = f"{what} was {then[name]:g} when it was saved, {now[name]:g} now"
        if kind == POSITION and ahead and now[name] >= 2 * then[name] - first[name] and _lr_differs(now, then):
            yield Piece(AHEAD, (what,), 1, 1, words)
        if kind == UPDATES and has_copies and now[name] == first[name]:
            yield Piece(UPDATES, (what,), 1, 1, words)


def _lr_differs(now: Mapping[str, float], then: Mapping[str, float]) -> bool:
    pairs = [(now[name], then[name]) for name in then if name.startswith(LR) and name in now]
    return any(abs(one - other) > LEAST_GAP * max(abs(one), abs(other)) for one, other in pairs)


def _has_moved(kind: str, start: StateSnapshot, initial: StateSnapshot | None) -> bool:
    first = initial.document.numbers if initial is not None else {}
    now = start.document.numbers
    return any(now[name] > first.get(name, 0) for name in now if name.startswith(kind))


def _noise(start: StateSnapshot, save: StateSnapshot, initial: StateSnapshot | None) -> Iterator[Piece]:
    """In both runs a generator (of torch, Python, NumPy) draws the same at the first two steps, and each step draws from it."""
    if initial is None or initial.rank != start.rank or min(len(start.document.rng), len(initial.document.rng)) < 2:
        return
    now, first = (list(zip(*(digest.split() for digest in one.document.rng), strict=False)) for one in (start, initial))
    if any(mine == other and mine[0] != mine[1] for mine, other in zip(now, first, strict=False)):
        yield Piece(RNG, (), 1, 1, "it begins as in the run that was saved, and draws the same in each step")


WORDS = {
    WEIGHTS: "the weights",
    ROUNDED: "weights rounded to {words}",
    BUFFERS: "the buffers",
    MOMENTS: "the optimizer's state",
    COPIES: "the copies of the model (EMA, target)",
    BESIDE: "the copies of the model (EMA, target) that the checkpoint holds",
    OWN: "what the checkpoint holds of objects of your own",
    SCALE: "the loss scale",
    SCHEDULE: "the schedule",
    AHEAD: "the schedule, which is ahead",
    UPDATES: "the update counter of the copies of the model (EMA, target)",
    LR: "the learning rate",
    RNG: "the random state",
}


def in_words(one: Continuation) -> tuple[str, ...]:
    """Every piece of a rank that is not what it was; the random state alone is none."""
    return tuple(words_of(piece) for piece in one.pieces if piece.kind != RNG)


def words_of(piece: Piece) -> str:
    """One piece, with numbers."""
    what = WORDS[piece.kind].format(words=piece.words)
    if not piece.names or piece.kind in (SCALE, SCHEDULE, AHEAD, UPDATES, LR):
        return f"{what}: {piece.words}"
    those = ", ".join(piece.names[:2])
    if piece.kind == ROUNDED:
        return f"{what}: all {piece.of}, {those} first"
    one = piece.differing == 1
    how = ("is gone" if one else "are gone") if piece.words == "none" else "differs" if one else "differ"
    if piece.kind == OWN:
        how = "begins as at first" if one else "begin as at first"
    return f"{what}: {piece.differing} of {piece.of} {how}, {those} first"


def where_loaded(restored: Restored, recording: Recording, ranks: tuple[int, ...] = ()) -> SourceLine:
    """Where the checkpoint was read; where that is not on record, where state was loaded."""
    logs = [recording.ranks[rank] for rank in (*ranks, *recording.ranks) if rank in recording.ranks]
    paths = {path for one in restored.ranks.values() for path in one.save.document.paths}
    loads = [event for log in logs for event in log.noted(Loading)]
    chosen = [event.site for event in loads if event.path in paths] or [event.site for event in loads]
    chosen += [event.site for log in logs for event in log.noted(StateLoaded)]
    return next((site for site in chosen if site), SourceLine())
