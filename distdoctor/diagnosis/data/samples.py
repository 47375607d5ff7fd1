"""What each rank was handed by its loaders, pass by pass, and what belongs together: the passes that ranks made side by side."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from distdoctor.diagnosis.check import NotApplicable
from distdoctor.recording.recording import RankTrace, Recording, SourceLine
from distdoctor.recording.trace.layout import BLOCK_INDICES, BlockKind, PassFlag
from distdoctor.recording.trace.reader import Rows
from distdoctor.recording.trace.sample_bitmap import SampleBitmap, in_common
from distdoctor.recording.trace.sampled_indices import kept

Indices = NDArray[np.uint32]
CERTAIN_DIGITS = 9.0  # a coincidence of less than one in 10^9 counts as none
_NONE: Indices = np.empty(0, np.uint32)
_AT_ONCE = 1 << 20  # indices that are thinned together


@dataclass(frozen=True)
class DataSet:
    """A data set as its rank described it. Equal digests with `pieces` > 0: the same content, as far as it could be seen."""

    name: str = ""
    length: int = -1  # below any Subset; -1: unknown
    digest: str = ""
    pieces: int = 0
    outer: str = ""  # digest together with the Subsets around it
    bag: str = ""  # digest of its lists in any order; "": none was read whole
    objects: str = ""  # bytes of Python objects in its largest container, and the attribute's name
    held: str = ""  # classes of what lies in it and can be told the epoch, `Order>Augmentation`

    @classmethod
    def parse(cls, text: str) -> DataSet:
        return _described(text)

    def same_content(self, other: DataSet) -> bool:
        """Whether nothing that was seen tells the two data sets below the Subsets apart."""
        return (self.name, self.length, self.digest) == (other.name, other.length, other.digest)

    @property
    def object_bytes(self) -> int:
        number = self.objects.partition(" ")[0]
        return int(number) if number.isdigit() else 0

    def reordered(self, other: DataSet) -> bool:
        """Whether both hold the same values, in lists that are ordered differently."""
        alike = (self.name, self.length, self.bag) == (other.name, other.length, other.bag)
        return bool(self.bag) and alike and self.digest != other.digest


@lru_cache(maxsize=1 << 10)  # ranks have the same ones
def _described(text: str) -> DataSet:
    words = text.split("\0")
    return DataSet(words[0], int(words[1]), words[2], int(words[3]), *words[4:8]) if len(words) > 4 else DataSet(text)


@dataclass(frozen=True, eq=False, slots=True)
class LoaderPass:
    """One pass over one loader, as far as it went. `length`: of what the loader was given, -1 unknown.

    `first`: the first draws, in order, every one of them. `indices`: every kept draw in order (all of them when `keep_one_in`
    is 1), without the padding of DistributedSampler and accelerate; `padding`: that. `whole`: nothing between the first and the
    latest draw is missing from `indices`, but for the thinning. `kept_set`: where `indices` are thinned, all samples that were
    drawn without that padding, if there was room for them. `rows`: fingerprints of the samples of iterable data, and of what no
    sampler shares out, one in `rows_one_in` of them.
    """

    rank: int
    seq: int
    loader: int
    number: int
    flags: PassFlag
    length: int
    drawn: int
    batches: int
    ahead: int
    data: DataSet
    sampler: str
    seed: int
    epoch_told: int
    set_epoch_calls: int
    set_epoch_line: SourceLine
    loop_line: SourceLine
    made_line: SourceLine
    num_replicas: int
    sampler_rank: int
    batch_size: int
    workers: int
    keep_one_in: int
    first_step: int
    optimizer: int
    started_ns: int
    ended_ns: int
    first: Indices
    indices: Indices
    padding: Indices
    whole: bool
    kept_set: SampleBitmap | None = None
    rows: Indices = field(default_factory=lambda: _NONE)
    rows_one_in: int = 1

    @property
    def drawn_set(self) -> SampleBitmap | None:
        """Every sample that was drawn, each once, the padding left out; None where that is not known exactly."""
        if self.kept_set is not None or not self.comparable or self.data.length < 0:
            return self.kept_set
        drawn = self.indices if self.keep_one_in == 1 and self.whole else self._short
        if drawn is None or (len(drawn) and int(drawn.max()) >= self.data.length):
            return None
        return SampleBitmap.of(drawn, self.data.length)

    @property
    def _short(self) -> Indices | None:
        """All draws without the padding, when they are no more than those of which every one is kept."""
        return self.first[: len(self.first) - len(self.padding)] if len(self.first) == self.drawn else None

    @property
    def distinct(self) -> int | None:
        """How many different samples were drawn, the padding left out; None where that is not known exactly."""
        if self.keep_one_in == 1 and self.whole:
            return len(np.unique(self.indices))
        return len(self.drawn_set) if self.drawn_set is not None else None

    @property
    def exhausted(self) -> bool:
        return self.ended_ns != 0

    @property
    def read_all(self) -> bool:
        """It came to its end, or drew all that torch's sampler has: libraries that count batches do not ask for one more."""
        if self.exhausted or self.length <= 0:
            return self.exhausted
        if self.flags & PassFlag.DISTRIBUTED_SAMPLER and self.num_replicas > 0:
            share = self.length / self.num_replicas
            return self.drawn >= (math.floor(share) if self.flags & PassFlag.DROP_LAST else math.ceil(share)) > 0
        return bool(self.flags & PassFlag.WHOLE) and self.drawn >= self.length

    @property
    def trains(self) -> bool:
        """An optimizer stepped while it ran."""
        return bool(self.flags & PassFlag.STEPPED)

    @property
    def evaluates(self) -> bool:
        """Gradients were off when it began, or the model was in eval mode, and no optimizer stepped."""
        with_gradients = self.flags & PassFlag.GRADIENTS_ON and not self.flags & PassFlag.EVAL_MODE
        return not self.flags & PassFlag.STEPPED and not with_gradients

    @property
    def comparable(self) -> bool:
        """Its indices name samples of the data set below, the same ones on every rank that has this data set."""
        return not self.flags & (PassFlag.HASHED | PassFlag.UNTRANSLATED | PassFlag.ITERABLE)

    @property
    def shuffles(self) -> bool | None:
        """As the sampler says; None when it does not."""
        return bool(self.flags & PassFlag.SHUFFLE) if self.flags & PassFlag.SHUFFLE_KNOWN else None

    @property
    def sampler_name(self) -> str:
        """The innermost sampler that is more than batching: `DistributedSampler`."""
        names = [name for name in self.sampler.split(">") if name != "BatchSampler"]
        return names[-1] if names else self.sampler

    @property
    def outdated(self) -> bool:
        """Its workers had begun before the latest set_epoch of its data, and hold copies of what they were then."""
        return bool(self.flags & PassFlag.OUTDATED)

    @property
    def subset(self) -> str:
        """What tells its Subset from others, "" when it is none."""
        return self.data.outer[:8] if self.flags & PassFlag.TRANSLATED else ""

    @property
    def sharded(self) -> bool:
        """Its sampler was told how many replicas there are and which of them it serves."""
        return self.num_replicas > 1 and self.sampler_rank >= 0

    def chance_digits(self, draws: int) -> float:
        """-log10 of the chance that another shuffle of the data begins with the same `draws` draws."""
        if self.length <= 0:
            return 0.0 if draws < 32 else CERTAIN_DIGITS
        draws = min(draws, self.length)
        return (math.lgamma(self.length + 1) - math.lgamma(self.length - draws + 1)) / math.log(10)


@dataclass(frozen=True, eq=False)
class Together:
    """The passes that several ranks made side by side: over the same loader's line, begun at the same optimizer step."""

    passes: Mapping[int, LoaderPass]

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(sorted(self.passes))

    @cached_property
    def one(self) -> LoaderPass:
        return self.passes[min(self.passes)]

    @cached_property
    def trains(self) -> bool:
        return all(one.trains for one in self.passes.values())

    @cached_property
    def evaluates(self) -> bool:
        return all(one.evaluates for one in self.passes.values())

    def among(self, ranks: Iterable[int]) -> Together:
        """The part of it that these ranks made."""
        wanted = set(ranks)
        return Together({rank: one for rank, one in self.passes.items() if rank in wanted})


def _by_purpose(passes: Sequence[LoaderPass]) -> tuple[LoaderPass, ...]:
    """These, where a loader that is read on through many evaluations is none that trains: it was always begun without gradients,
    and another one, begun with them, is there for the steps in between."""
    with_gradients = {one.loader for one in passes if one.trains and one.flags & PassFlag.GRADIENTS_ON}
    apart = {one.loader for one in passes} - {one.loader for one in passes if one.flags & PassFlag.GRADIENTS_ON}
    return tuple(
        replace(one, flags=PassFlag(one.flags & ~PassFlag.STEPPED)) if with_gradients and one.loader in apart else one
        for one in passes
    )


@dataclass(frozen=True)
class SampleOrders:
    """All passes of all ranks. `by_rank[r]` is in the order in which rank r began them."""

    streams: ClassVar[frozenset[str]] = frozenset({"samples"})
    by_rank: Mapping[int, tuple[LoaderPass, ...]]
    world_size: int

    @classmethod
    def of(cls, recording: Recording) -> Self:
        # While the job runs only what the traces keep is compared: the sets are read once, when they are complete.
        exactly = not recording.job.running
        every = ((rank, passes_of(log, exactly=exactly)) for rank, log in recording.ranks.items())
        by_rank = {rank: _by_purpose([one for one in own if not one.flags & PassFlag.GIVEN]) for rank, own in every}
        if not any(by_rank.values()):
            raise NotApplicable("no DataLoader was iterated")
        return cls(by_rank, recording.world_size)

    def by_loader(self, rank: int) -> dict[int, list[LoaderPass]]:
        """The passes of one rank by the number of its loader, in order."""
        found: dict[int, list[LoaderPass]] = defaultdict(list)
        for one in self.by_rank.get(rank, ()):
            found[one.loader].append(one)
        return dict(found)

    def together(self) -> Iterator[Together]:
        """The passes that at least two ranks made side by side, in the order in which they began.

        What one rank iterates alone (a first look at a batch, rank 0's own evaluation) belongs to nothing.
        """
        yield from self._together

    @cached_property
    def _together(self) -> tuple[Together, ...]:
        by_loop: dict[tuple[object, ...], dict[int, list[LoaderPass]]] = defaultdict(lambda: defaultdict(list))
        for rank, passes in self.by_rank.items():
            for one in passes:
                purpose = "trains" if one.trains else "evaluates" if one.evaluates else "unknown"
                by_loop[str(one.loop_line), str(one.made_line), one.data.name, purpose][rank].append(one)
        pairs = [mates for by_rank in by_loop.values() for mates in _paired(by_rank) if len(mates) > 1]
        pairs.sort(key=lambda mates: min((one.first_step, one.started_ns) for one in mates.values()))
        return tuple(Together(dict(sorted(mates.items()))) for mates in pairs)


def _paired(by_rank: Mapping[int, Sequence[LoaderPass]]) -> Iterator[dict[int, LoaderPass]]:
    """The passes of one loop that belong together: those that were told one epoch, where every rank is told the same epochs in
    turn; else those that began after as many steps."""
    told = [[one.epoch_told for one in passes] for passes in by_rank.values()]
    longest = max(told, key=len)
    in_turn = len(set(longest)) == len(longest) > 1 and all(one == longest[: len(one)] for one in told)
    found: dict[tuple[int, int], dict[int, LoaderPass]] = defaultdict(dict)
    for rank, passes in by_rank.items():
        repeats: dict[int, int] = defaultdict(int)
        for number, one in enumerate(passes):
            key = number if in_turn else one.first_step
            found[key, repeats[key]][rank] = one
            repeats[key] += 1
    yield from found.values()


def passes_of(log: RankTrace, *, exactly: bool = True) -> Iterator[LoaderPass]:
    """The passes of one rank, with what their blocks still hold, and `exactly` with their sets."""
    blocks = log.blocks[np.argsort(log.blocks["pass_seq"], kind="stable")]
    edges = np.searchsorted(blocks["pass_seq"], log.passes["seq"])
    ends = np.searchsorted(blocks["pass_seq"], log.passes["seq"], side="right")
    for row, begin, end in zip(log.passes, edges, ends, strict=True):
        yield _pass(log, row, blocks[begin:end], exactly)


def _pass(log: RankTrace, row: Rows, blocks: Rows, exactly: bool) -> LoaderPass:
    values = dict(zip(row.dtype.names or (), row.item(), strict=True))

    def whole_number(name: str) -> int:
        return int(values[name])

    flags = PassFlag(whole_number("flags"))
    drawn, length = whole_number("drawn"), whole_number("dataset_length")
    replicas, rank = whole_number("num_replicas"), whole_number("sampler_rank")
    padded = max(0, drawn - _real(flags, length, replicas, rank, whole_number("batch_size"), drawn))
    first, indices, padding, whole = drawn_indices(blocks, drawn, whole_number("keep_one_in"), padded)
    rows, rows_one_in = _stream_rows(blocks)
    return LoaderPass(
        rank=log.rank,
        seq=whole_number("seq"),
        loader=whole_number("loader"),
        number=whole_number("pass_number"),
        flags=flags,
        length=length,
        drawn=drawn,
        batches=whole_number("batches"),
        ahead=whole_number("ahead"),
        data=DataSet.parse(log.text(whole_number("dataset"))),
        sampler=log.text(whole_number("sampler")),
        seed=whole_number("seed"),
        epoch_told=whole_number("epoch_told"),
        set_epoch_calls=whole_number("set_epoch_calls"),
        set_epoch_line=log.site(whole_number("set_epoch_site")),
        loop_line=log.site(whole_number("loop_site")),
        made_line=log.site(whole_number("made_site")),
        num_replicas=replicas,
        sampler_rank=rank,
        batch_size=whole_number("batch_size"),
        workers=whole_number("workers"),
        keep_one_in=max(1, whole_number("keep_one_in")),
        first_step=whole_number("first_step"),
        optimizer=whole_number("optimizer"),
        started_ns=whole_number("started_ns") + log.monotonic_to_wall_ns,
        ended_ns=whole_number("ended_ns") and whole_number("ended_ns") + log.monotonic_to_wall_ns,
        first=first,
        indices=indices,
        padding=padding,
        whole=whole and not flags & PassFlag.TRUNCATED,
        kept_set=_kept_set(log, whole_number("seq"), blocks, drawn, len(padding))
        if exactly and len(padding) == padded
        else None,
        rows=rows,
        rows_one_in=rows_one_in,
    )


def _stream_rows(blocks: Rows) -> tuple[Indices, int]:
    """Fingerprints of the samples of a pass, in order, and one in how many they are."""
    own = blocks[blocks["kind"] == BlockKind.ROWS]
    own = own[np.argsort(own["block_number"], kind="stable")]
    keep = max((int(b["covers"]) for b in own), default=1)
    found = [b["indices"][: int(b["count"])] for b in own if int(b["covers"]) == keep]
    return np.concatenate([*found, _NONE]), max(1, keep)


def _real(flags: PassFlag, length: int, replicas: int, rank: int, size: int, drawn: int) -> int:
    """How many of the draws are no padding, by the sampler's own rule; all of them where it has none."""
    if length < 0 or not 0 <= rank < replicas:
        return drawn
    if flags & PassFlag.EVENED and size > 0:  # shares of `size` samples, dealt out in turns
        rounds, left = divmod(length, size * replicas)
        return rounds * size + min(max(0, left - rank * size), size)
    if flags & PassFlag.DISTRIBUTED_SAMPLER and not flags & PassFlag.DROP_LAST:
        return len(range(rank, length, replicas))
    return drawn


def _kept_set(log: RankTrace, seq: int, blocks: Rows, drawn: int, padded: int) -> SampleBitmap | None:
    """The set on disk with the draws that are not in it yet; None unless both together stand for every draw of the pass."""
    file = log.drawn_sets.get(seq)
    read = file.content if file is not None else None
    raw = blocks[blocks["kind"] == BlockKind.RAW]
    if read is None or not len(raw):
        return None
    found, covered = read
    latest = raw[np.argmax(raw["block_number"])]
    begins = int(latest["block_number"]) * BLOCK_INDICES
    tail = np.asarray(latest["indices"][: max(0, drawn - begins)])
    if covered < begins or begins + len(tail) != drawn or (len(tail) and int(tail.max()) >= found.length):
        return None
    return found.with_more(tail[: len(tail) - padded])


def drawn_indices(blocks: Rows, drawn: int, keep: int, padded: int = 0) -> tuple[Indices, Indices, Indices, bool]:
    """(the first draws, every kept draw without the last `padded` ones, those, whether none is missing) of one pass."""
    raw = {int(b["block_number"]): b for b in blocks[blocks["kind"] == BlockKind.RAW]}
    pieces = {n: np.asarray(b["indices"][: max(0, drawn - n * BLOCK_INDICES)]) for n, b in sorted(raw.items())}
    if keep <= 1:
        found = np.concatenate([*pieces.values(), _NONE])
        whole = len(found) == drawn
        first = found if whole else pieces.get(0, _NONE).copy()
        if not (whole and padded):
            return first, found, _NONE, whole
        return first, found[: len(found) - padded], found[len(found) - padded :], whole
    first = pieces.get(0, _NONE).copy()  # not the whole block
    filed = blocks[blocks["kind"] == BlockKind.KEPT]
    filed = filed[np.argsort(filed["block_number"], kind="stable")]
    covered = max((int(b["covers"]) for b in filed), default=0)
    last = max(pieces, default=0)
    tail = pieces.get(last, _NONE) if last * BLOCK_INDICES >= covered else _NONE
    cut = len(tail) - min(padded, len(tail))
    found = np.concatenate([*(b["indices"][: int(b["count"])] for b in filed), thinned(tail[:cut], keep), _NONE])
    numbers = [int(b["block_number"]) for b in filed]
    whole = numbers == list(range(len(numbers))) and covered + len(tail) == drawn
    return first, found, tail[cut:].copy(), whole


def thinned(indices: Indices, keep: int) -> Indices:
    """Those that are kept when one in so many is."""
    from array import array

    return np.array(kept(array("I", indices.tobytes()), keep), np.uint32)


# --- what sets of indices have in common ----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Overlap:
    """Samples that more than one rank drew. `shared`: how many different ones were found among the kept indices.

    `keep_one_in` times that is the estimate for all; 1: they are all. `pairs`: (rank, rank, how many of the found), the largest
    first; among many ranks, or where not everything is known, of a bounded part.
    """

    shared: int
    keep_one_in: int
    examples: tuple[int, ...]
    ranks: tuple[int, ...]
    pairs: tuple[tuple[int, int, int], ...]
    compared: int

    @property
    def words(self) -> str:
        """`120 samples`, or, where not every index was kept, `about 7,680 samples (120 of those compared)`."""
        if self.keep_one_in == 1:
            return f"{self.shared:,} sample{'s' if self.shared != 1 else ''}"
        return f"about {self.shared * self.keep_one_in:,} samples ({self.shared:,} of the {self.compared:,} compared)"


def comparable_indices(passes: Sequence[LoaderPass], limit: int = 0) -> tuple[list[Indices], int]:
    """The indices of several passes thinned alike, and to one in how many. `limit`: only so many draws from the start."""
    if limit:
        cut = [one.first[:limit] if one.keep_one_in > 1 else one.indices[:limit] for one in passes]
        return cut, 1
    keep = max(one.keep_one_in for one in passes)
    return [one.indices if one.keep_one_in == keep else thinned(one.indices, keep) for one in passes], keep


def overlap(passes: Sequence[LoaderPass], limit: int = 0) -> Overlap:
    """The samples that two or more of these passes (of different ranks) share."""
    sets = drawn_sets(passes) if not limit and any(one.keep_one_in > 1 for one in passes) else None
    if sets is not None:
        return _exact_overlap([one.rank for one in passes], sets)
    lists, keep = comparable_indices(passes, limit)
    distinct = [np.unique(indices) for indices in lists]
    drawn = np.concatenate([*distinct, _NONE])
    owners = np.repeat(np.array([one.rank for one in passes], np.int64), [len(d) for d in distinct])
    order = np.argsort(drawn, kind="stable")
    drawn, owners = drawn[order], owners[order]
    values, counts = np.unique(drawn, return_counts=True)
    shared = values[counts > 1]
    # Pairs are named from a bounded part: an overlap of everything with everything would be quadratic in the ranks.
    part = np.isin(drawn, shared[:4096])
    values_of_part, sharing = drawn[part], owners[part]
    next_to = values_of_part[1:] == values_of_part[:-1]
    pairs, times = np.unique(sharing[:-1][next_to] << 32 | sharing[1:][next_to], return_counts=True)
    most = np.argsort(-times, kind="stable")[:16]
    return Overlap(
        shared=len(shared),
        keep_one_in=keep,
        examples=tuple(int(value) for value in shared[:5]),
        ranks=tuple(np.unique(sharing).tolist()),
        pairs=tuple((int(pairs[at] >> 32), int(pairs[at] & 0xFFFFFFFF), int(times[at])) for at in most),
        compared=len(values),
    )


MATRIX_RANKS = 8  # beyond that only the pairs that share most are told


def drawn_sets(passes: Sequence[LoaderPass]) -> list[SampleBitmap] | None:
    """Every sample that each of these passes drew, over the same data; None where that is not known of all."""
    found = [one.drawn_set for one in passes]
    sets = [one for one in found if one is not None]
    return sets if len(sets) == len(found) and len({one.length for one in sets}) == 1 else None


def _exact_overlap(ranks: Sequence[int], sets: Sequence[SampleBitmap]) -> Overlap:
    common = in_common(sets, pairs=len(sets) <= MATRIX_RANKS)
    owners = np.array([one.holds(common.examples) for one in sets])  # [ranks, examples]
    pairs = {(ranks[a], ranks[b]): n for (a, b), n in common.pairs.items() if n}
    if not common.pairs:  # as they follow each other among the owners of the first samples that are shared
        for sharing in owners.T:
            for first, second in pairwise(np.flatnonzero(sharing)):
                pair = ranks[int(first)], ranks[int(second)]
                pairs[pair] = pairs.get(pair, 0) + 1
    ordered = sorted(((a, b, n) for (a, b), n in pairs.items()), key=lambda pair: (-pair[2], pair[0], pair[1]))
    sharing_ranks = {rank for pair in pairs for rank in pair}
    examples = tuple(int(value) for value in common.examples[:5])
    return Overlap(common.shared, 1, examples, tuple(sorted(sharing_ranks)), tuple(ordered[:16]), common.union)


def repeats_within(one: LoaderPass) -> int:
    """How many draws of a pass were drawn in it before: 0 for a sampler without replacement. Of a pass of which only a part is
    known, among that part."""
    if one.keep_one_in > 1 and one.distinct is not None:
        return one.drawn - len(one.padding) - one.distinct
    return len(one.indices) - len(np.unique(one.indices))


def common_start(one: LoaderPass, other: LoaderPass) -> int:
    """With how many equal draws two passes begin, as far as every draw is known of both."""
    n = min(len(one.first), len(other.first))
    different = np.flatnonzero(one.first[:n] != other.first[:n])
    return int(different[0]) if len(different) else n


def same_order(one: LoaderPass, other: LoaderPass) -> bool:
    """Whether the shorter of two passes is the beginning of the longer, in every draw that was kept of both."""
    if common_start(one, other) < min(len(one.first), len(other.first)):
        return False
    if one.keep_one_in != other.keep_one_in or not (one.whole and other.whole):
        return True  # nothing more is known
    n = min(len(one.indices), len(other.indices))
    return bool(np.array_equal(one.indices[:n], other.indices[:n]))


def unseen(passes: Sequence[LoaderPass], length: int) -> Indices:
    """The kept indices of `range(length)` that none of these passes drew. Only meaningful when all of them are whole."""
    lists, keep = comparable_indices(passes)
    ranges = ((start, min(length, start + _AT_ONCE)) for start in range(0, length, _AT_ONCE))
    everything = np.concatenate([thinned(np.arange(*ends, dtype=np.uint32), keep) for ends in ranges] or [_NONE])
    return np.setdiff1d(everything, np.concatenate([*lists, *(one.padding for one in passes), _NONE]))
