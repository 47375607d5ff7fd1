"""Flight recorder dumps as rows of a recording, all ranks together: what they share is worked out once."""

from __future__ import annotations

import hashlib
import marshal
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any, NamedTuple, cast

import numpy as np

from distdoctor.recording.flight.backend_state import BackendState, GroupState, LastEntry, groups_of
from distdoctor.recording.flight.entries import FlightDump, Kind, is_users_frame, kind_of, whole
from distdoctor.recording.flight.moments import leftover_dumps
from distdoctor.recording.flight.other_starts import DumpSeen, other_starts
from distdoctor.recording.flight.shared_rows import SharedRows
from distdoctor.recording.recording import Job, RankTrace, Recording, Trouble, no_rows
from distdoctor.recording.trace.layout import CALL, FROM_ALL, GROUP, POINT_TO_POINT, Op, extend, whole_number
from distdoctor.recording.trace.reader import Rows, dtype_of

Array = np.ndarray[Any, np.dtype[Any]]
LAUNCHER = "flight recorder dumps"  # what a recording made of dumps says about who started the job
_TIMES = ("entered_ns", "returned_ns")
_POINT_TO_POINT = [int(op) for op in POINT_TO_POINT]
_LAST = (("count", "number"), ("prefix", "prefix"), ("site_prefix", "site_prefix"), ("last_ns", "entered_ns"))
_KIND_FIELDS = (
    "profiling_name", "input_sizes", "output_sizes", "input_dtypes", "output_dtypes", "process_group", "pg_id",
    "is_p2p",
)  # fmt: skip
_NUMBER_FIELDS = (
    "collective_seq_id",
    "time_created_ns",
    "time_discovered_completed_ns",
    "retired",
    "state",
    "thread_id",
)


def recording_of(dumps: Iterable[FlightDump], troubles: list[Trouble] | None = None) -> Recording:
    """The recording that dumps make together; each is let go before the next one is asked for. Times are wall clock.

    It has neither a running job nor ends: of a dump nobody knows how the job went on. `troubles` grows by ranks with two dumps.
    """
    return recording_of_parts([DumpPart.of(dumps)], troubles)


def recording_of_parts(parts: Iterable[DumpPart], troubles: list[Trouble] | None = None) -> Recording:
    """The same of dumps that were read in several processes."""
    table, troubles = _Table(), [] if troubles is None else troubles
    by_rank: dict[int, Columns] = {}
    for columns in _of_one_start([columns for part in parts for columns in table.joined(part)], troubles):
        known = by_rank.get(columns.rank)
        by_rank[columns.rank] = columns if known is None else _better(columns, known, troubles)
    for rank, why in leftover_dumps({rank: table.state(columns) for rank, columns in by_rank.items()}).items():
        left = by_rank.pop(rank)
        troubles.append(Trouble(f"{left.source} is left over from before, and was left aside: {why}", rank))
    read = [by_rank[rank] for rank in sorted(by_rank)]
    table.members, table.starts = _members(read, table.kinds), _common_starts(read, table.kinds)
    rows = [table.rows(columns) for columns in read]
    texts = tuple(table.texts)  # one table for all ranks
    logs = {columns.rank: _log(columns, *part, texts) for columns, part in zip(read, rows, strict=True)}
    world = max([rank for ranks in table.members.values() for rank in ranks] + list(logs), default=-1) + 1
    return Recording(
        job=Job(
            world_size=world, launcher=LAUNCHER, read_at_ns=max((columns.written_ns for columns in read), default=0)
        ),
        ranks=logs,
        streams=frozenset({"collectives", "progress"}),
        troubles=tuple(troubles),
        backend={columns.rank: table.state(columns) for columns in read},
    )


@dataclass(frozen=True)
class Columns:
    """One dump, read: the kind of each entry, and what differs from entry to entry."""

    rank: int
    source: str
    library: str
    written_ns: int
    groups: Mapping[str, tuple[int, ...]]
    forgotten: int
    has_stacks: bool
    codes: Array
    sequence: Array
    created: Array
    returned: Array
    threads: Array
    groups_used: tuple[GroupState, ...] = ()

    @property
    def worth(self) -> tuple[int, bool, str]:
        """The later dump is worth more; of equals the one with lines of source."""
        return int(self.created.max(initial=0)), self.has_stacks, self.source


@dataclass(frozen=True)
class DumpPart:
    """Some dumps, read: their columns, whose codes count in `examples`, one entry of each kind."""

    columns: tuple[Columns, ...]
    examples: tuple[Mapping[str, Any], ...]

    @classmethod
    def of(cls, dumps: Iterable[FlightDump]) -> DumpPart:
        """Each dump is let go before the next one is asked for. Equal columns are kept, and sent, once."""
        table = _Table()
        known: dict[tuple[str, bytes], Array] = {}
        columns = tuple(_with_shared(table.read(dump), known) for dump in dumps)
        return cls(columns, tuple(table.examples))


def _with_shared(read: Columns, known: dict[tuple[str, bytes], Array]) -> Columns:
    codes, sequence, threads = (
        known.setdefault((one.dtype.char, one.tobytes()), one) for one in (read.codes, read.sequence, read.threads)
    )
    return replace(read, codes=codes, sequence=sequence, threads=threads)


def _users_depth(frames: Sequence[Any], users: dict[int, bool]) -> int:
    """How many frames there are down to the user's first, or in all. `users`: by identity, whether a frame is theirs."""
    for depth, frame in enumerate(frames, 1):
        is_users = users.get(id(frame))
        if is_users is None:
            is_users = users[id(frame)] = is_users_frame(frame)
        if is_users:
            return depth
    return len(frames)


def _of_one_start(found: list[Columns], troubles: list[Trouble]) -> list[Columns]:
    """The dumps without those of other starts and jobs that lie beside them."""
    others = other_starts(
        DumpSeen(one.source, one.rank, one.worth[0], max(map(len, one.groups.values()), default=0)) for one in found
    )
    troubles += [Trouble(one.words) for one in others]
    left = {dump.source for one in others for dump in one.dumps}
    return [one for one in found if one.source not in left] if left else found


def _better(one: Columns, other: Columns, troubles: list[Trouble]) -> Columns:
    kept, left = (one, other) if one.worth > other.worth else (other, one)
    if kept.worth[0] != left.worth[0]:
        troubles.append(
            Trouble(f"{kept.source} and {left.source} are both of rank {one.rank}: took the later one", one.rank)
        )
    return kept


@dataclass(frozen=True)
class _SharedCalls:
    """What ranks that issued the same calls have in common: the columns but for the times, the backend of each group, and the
    place of the last collective on it."""

    columns: Mapping[str, Array]
    backends: Mapping[str, str]
    last: Mapping[str, int]


class _Table:
    """Everything that the dumps share: kinds of entries, texts, running digests.

    The ranks of a job do the same things, so most of a dump is found here, and an entry costs two microseconds.
    """

    def __init__(self) -> None:
        self.members: Mapping[str, tuple[int, ...]] = {}
        self.starts: Mapping[str, int] = {}
        self.texts: dict[str, int] = {"": 0}
        self.kinds: list[Kind] = []
        self.examples: list[Mapping[str, Any]] = []
        self._stacks: dict[bytes, int] = {}  # a stack -> its number; 0 is no stack
        self._codes: dict[int, dict[bytes, int]] = defaultdict(dict)  # by stack and by what `_bytes_of` its fields
        self._fields: dict[str, Array] = {}
        self._member_sets: dict[str, frozenset[int]] = {}
        self._member_texts: dict[str, int] = {}
        self._shared: dict[bytes, _SharedCalls] = {}

    def text(self, words: str) -> int:
        return self.texts.setdefault(words, len(self.texts))

    def joined(self, part: DumpPart) -> Iterable[Columns]:
        """The columns of dumps that another table has read, with the codes of this one."""
        stacks = self._stacks_of([example.get("frames") for example in part.examples])
        keys = zip(stacks, map(_bytes_of, _picked(part.examples, _KIND_FIELDS)), strict=True)
        codes = [self._code(*key, example) for key, example in zip(keys, part.examples, strict=True)]
        mine = np.array(codes, np.uint32)
        known = {id(columns.codes): mine[columns.codes] for columns in part.columns} if len(mine) else {}
        return (replace(columns, codes=known.get(id(columns.codes), columns.codes)) for columns in part.columns)

    def read(self, dump: FlightDump) -> Columns:
        """The columns of one dump."""
        entries = dump.entries
        stacks = self._stacks_of([entry.get("frames") for entry in entries])
        fields = list(map(_bytes_of, _picked(entries, _KIND_FIELDS)))
        by_stack = self._codes
        codes = np.array([by_stack[stack].get(of, -1) for stack, of in zip(stacks, fields, strict=True)], np.int64)
        for at in np.flatnonzero(codes < 0).tolist():
            codes[at] = self._code(stacks[at], fields[at], entries[at])
        numbers = dict(zip(_NUMBER_FIELDS, zip(*_picked(entries, _NUMBER_FIELDS), strict=True), strict=False))
        created = _ints(numbers.get("time_created_ns", ()))
        sequence, returned = _ints(numbers.get("collective_seq_id", ())), _returned(numbers, created)
        is_frame = self._field("is_frame")[codes].astype(bool) if len(codes) else np.zeros(0, bool)
        _complete_batches(dump, self._field("pairwise")[codes].astype(bool) | is_frame, is_frame, returned)
        mine = ~is_frame
        return Columns(
            rank=dump.rank,
            source=dump.source,
            library=dump.library,
            written_ns=dump.written_ns,
            groups=dump.groups,
            forgotten=whole(entries[0].get("record_id")) if entries else 0,
            has_stacks=any(stacks),
            codes=codes[mine].astype(np.uint32),
            sequence=sequence[mine],
            created=created[mine],
            returned=returned[mine],
            threads=_threads(numbers.get("thread_id", ()))[mine],
            groups_used=groups_of(
                dump, np.flatnonzero((returned == 0) & mine).tolist(), self._last(codes, sequence, returned)
            ),
        )

    def _last(self, codes: Array, sequence: Array, returned: Array) -> dict[str, LastEntry]:
        """The latest entry of each group of a dump, by pg_id."""
        found: dict[str, LastEntry] = {}
        from_all = np.array([kind.op in FROM_ALL for kind in self.kinds], bool)
        for number in {self.kinds[code].number for code in np.unique(codes)}:
            belongs = np.array([kind.number == number for kind in self.kinds], bool)[codes]
            pairs = belongs & self._field("pairwise")[codes].astype(bool)
            frames = belongs & self._field("is_frame")[codes].astype(bool)
            together = sequence[belongs & ~pairs & ~frames]
            done = belongs & ~pairs & ~frames & (returned > 0)
            attended = sequence[done & from_all[codes]]
            kind = self.kinds[codes[np.flatnonzero(belongs)[-1]]]
            found[number] = LastEntry(
                kind.group,
                kind.description,
                int(together.max(initial=0)),
                bool((pairs | frames).any()),
                int(sequence[done].max(initial=0)),
                int(attended.max(initial=0)),
            )
        return found

    def state(self, read: Columns) -> BackendState:
        """What the backend of one rank says, once the members of all groups are known."""
        groups = (replace(one, members=self.members.get(one.name, ())) for one in read.groups_used)
        last_ns = int(max(read.created.max(initial=0), read.returned.max(initial=0)))
        return BackendState(read.rank, tuple(groups), read.written_ns, last_ns)

    def _stacks_of(self, stacks: Sequence[Any]) -> list[int]:
        """A number for each stack down to its first user frame: what lies below says nothing about the call.

        torch writes a frame once and refers to it, so within one dump its identity is enough.
        """
        # A tree of frames by identity: in it every stack down to a user's frame, none of which is the start of another.
        tree: dict[int, Any] = {}
        users: dict[int, bool] = {}
        found = []
        for frames in stacks:
            if not frames or not isinstance(frames, list | tuple):
                found.append(0)
                continue
            node: Any = tree
            for frame in frames:
                node = node.get(id(frame))
                if node.__class__ is not dict:
                    break
            if node.__class__ is not int:
                node = self._learn_stack(frames, users, tree)
            found.append(node)
        return found

    def _learn_stack(self, frames: Sequence[Any], users: dict[int, bool], tree: dict[int, Any]) -> int:
        """The number of a stack that is not in the tree. It is put there where it ends with a user's frame."""
        depth = _users_depth(frames, users)
        number = self._stacks.setdefault(_bytes_of(frames[:depth]), len(self._stacks) + 1)
        *above, last = map(id, frames[:depth])
        if users[last]:
            for frame in above:
                tree = tree.setdefault(frame, {})
            tree[last] = number
        return number

    def _code(self, stack: int, fields: bytes, entry: Mapping[str, Any]) -> int:
        """The number of the kind of an entry, which is learnt where it is new."""
        known = self._codes[stack].get(fields)
        if known is not None:
            return known
        code = self._codes[stack][fields] = len(self.kinds)
        self.kinds.append(kind_of(entry, self.text))
        self.examples.append({name: entry.get(name) for name in (*_KIND_FIELDS, "frames")})
        self._fields.clear()
        return code

    def _field(self, name: str) -> Array:
        """One field of all kinds."""
        if name not in self._fields:
            values = [getattr(kind, name) for kind in self.kinds]
            self._fields[name] = np.array(values, np.uint64 if name in ("signature", "site_digest") else np.int64)
        return self._fields[name]

    def rows(self, read: Columns) -> tuple[Rows, Rows]:
        """The rows `calls` and `groups` of one rank, once members and starts are known."""
        key = hashlib.blake2b(digest_size=16)
        for column in (read.codes, read.sequence, read.threads):
            key.update(column.tobytes())
        shared = self._shared.get(key.digest())
        if shared is None:
            shared = self._shared[key.digest()] = self._shared_calls(read)
        columns = {**shared.columns, "entered_ns": read.created, "returned_ns": read.returned}
        calls = cast("Rows", SharedRows(columns, dtype_of(CALL), len(read.codes)))
        return calls, self._groups(read.rank, calls, shared)

    def _shared_calls(self, read: Columns) -> _SharedCalls:
        """What the calls of a rank have in common with those of all ranks that did the same: everything but their times."""
        rows = np.zeros(len(read.codes), dtype_of(CALL))
        rows["number"] = read.sequence
        for name in ("op", "dtype", "shape", "nbytes", "flags", "reduce_op", "signature", "site"):
            rows[name] = self._field(name)[read.codes] if len(rows) else 0
        rows["root"] = -1
        rows["thread"] = read.threads
        rows["seq"] = rows["end"] = np.arange(1, len(rows) + 1)
        backends = {kind.group: kind.backend for kind in (self.kinds[code] for code in np.unique(read.codes))}
        last = self._fill_in_groups(rows, read.codes, sorted(backends))
        columns = {name: np.ascontiguousarray(rows[name]) for name in rows.dtype.names or () if name not in _TIMES}
        return _SharedCalls(columns, backends, last)

    def _fill_in_groups(self, rows: Rows, codes: Array, names: Sequence[str]) -> dict[str, int]:
        """What of the calls depends on their groups; the place of the last collective of each group."""
        number_of = {name: number for number, name in enumerate(names)}
        belongs = np.array([number_of.get(kind.group, -1) for kind in self.kinds], np.int64)[codes]
        pairwise = np.isin(rows["op"], _POINT_TO_POINT)
        last: dict[str, int] = {}
        for number, name in enumerate(names):
            mine = belongs == number
            rows["group"][mine] = self.text(name)
            together = np.flatnonzero(mine & ~pairwise)
            if len(together):
                self._digest(rows, together, name, codes)
                last[name] = int(together[-1])
        for at in np.flatnonzero(pairwise):
            kind = self.kinds[codes[at]]
            rows["root"][at] = _global_rank(self.members.get(kind.group, ()), kind.peer)
        for code in np.flatnonzero(self._field("root") >= 0):
            kind = self.kinds[code]
            rows["root"][codes == code] = _global_rank(self.members.get(kind.group, ()), kind.root)
        _number_pairs(rows, pairwise)
        return last

    def _groups(self, rank: int, calls: Rows, shared: _SharedCalls) -> Rows:
        """The groups of one rank."""
        mine = (name for name in self.members if rank in self._member_set(name))
        names = sorted({*shared.backends, *mine}, key=_by_number)
        groups = np.zeros(len(names), dtype_of(GROUP))
        for number, name in enumerate(names):
            groups["key"][number] = self.text(name)
            groups["backend"][number] = self.text(shared.backends.get(name, ""))
            groups["members"][number] = self._members_text(name)
            if name in shared.last:
                for field_name, source in _LAST:
                    groups[field_name][number] = calls[source][shared.last[name]]
        groups["seq"] = groups["end"] = np.arange(1, len(names) + 1)
        return groups

    def _member_set(self, name: str) -> frozenset[int]:
        if name not in self._member_sets:
            self._member_sets[name] = frozenset(self.members.get(name, ()))
        return self._member_sets[name]

    def _members_text(self, name: str) -> int:
        if name not in self._member_texts:
            self._member_texts[name] = self.text(",".join(map(str, self.members.get(name, ()))))
        return self._member_texts[name]

    def _digest(self, rows: Rows, at: Array, name: str, codes: Array) -> None:
        """The running digests of one group, from the first number that everybody still remembers."""
        at = at[rows["number"][at] >= self.starts.get(name, 1)]
        rows["prefix"][at] = _running(self._field("signature")[codes[at]])
        rows["site_prefix"][at] = _running(self._field("site_digest")[codes[at]])


def _members(read: Sequence[Columns], kinds: Sequence[Kind]) -> dict[str, tuple[int, ...]]:
    """Group name -> global ranks: as pg_config says, else everybody for the default group, else whoever has used the group."""
    found: dict[str, tuple[int, ...]] = {}
    users: dict[str, set[int]] = {}
    for columns in read:
        for name, ranks in columns.groups.items():
            known = found.get(name, ())
            if known is not ranks:
                found[name] = max(known, ranks, key=lambda one: (len(one), one))
        for code in np.unique(columns.codes):
            users.setdefault(kinds[code].group, set()).add(columns.rank)
    everybody = {columns.rank for columns in read} | {rank for ranks in found.values() for rank in ranks}
    defaults = {kind.group for kind in kinds if kind.is_default_group}
    for name, used_by in users.items():
        if name not in found:
            found[name] = tuple(range(max(everybody) + 1)) if name in defaults else tuple(sorted(used_by))
    return found


def _common_starts(read: Sequence[Columns], kinds: Sequence[Kind]) -> dict[str, int]:
    """Group name -> the first number that every ring which has it still holds: running digests begin there, to be comparable."""
    names = sorted({kind.group for kind in kinds})
    groups = np.array([-1 if kind.op in POINT_TO_POINT else names.index(kind.group) for kind in kinds], np.int64)
    starts = dict.fromkeys(names, 1)
    for columns in read:
        if len(columns.codes):
            found, firsts = np.unique(groups[columns.codes], return_index=True)
            for group, first in zip(found, firsts, strict=True):
                if group >= 0:
                    starts[names[group]] = max(starts[names[group]], int(columns.sequence[first]))
    return starts


def _log(read: Columns, calls: Rows, groups: Rows, texts: tuple[str, ...]) -> RankTrace:
    return RankTrace(
        rank=read.rank,
        calls=calls,
        groups=groups,
        texts=texts,
        lost={"calls": read.forgotten},
        environment={"comm_lib_version": read.library, "dump": read.source},
        steps=no_rows("steps"),
        events=no_rows("events"),
        passes=no_rows("passes"),
        blocks=no_rows("blocks"),
    )


def _returned(numbers: Mapping[str, Sequence[Any]], entered: Array) -> Array:
    """When each entry was known to be complete; a moment after it began where that was not noted; 0 while it is not.

    gloo leaves `state` at `scheduled` for ever (torch 2.15): only `retired` tells. NCCL retires what its watchdog has seen done.
    """
    states = zip(numbers.get("retired", ()), numbers.get("state", ()), strict=True)
    done = np.array([bool(retired) or state == "completed" for retired, state in states], bool)
    noted = _ints([time or 0 for time in numbers.get("time_discovered_completed_ns", ())])
    return np.where(done, np.where(noted > 0, noted, entered + 1), 0)


def _complete_batches(dump: FlightDump, pairwise: Array, is_frame: Array, returned: Array) -> None:
    """Fill in when the sends and receives of a batch came back: torch keeps one event for all of them, that of the entry
    `coalesced`; theirs stay `scheduled` for ever (ProcessGroupNCCL.cpp, pointToPoint).

    A recorder that only writes what is active leaves the batch's own entry out once it is complete: where other batches of the
    group have theirs, this one is; where none has, the counter tells.
    """
    entries = dump.entries
    open_at = np.flatnonzero(pairwise & ~is_frame & (returned == 0)).tolist()
    if not open_at:
        return
    frames = {_batch(entries[at]): int(returned[at]) for at in np.flatnonzero(is_frame).tolist()}
    in_batches = {batch.group for batch in frames}
    sizes = Counter(_batch(entries[at]) for at in open_at)
    for at in open_at:
        batch = _batch(entries[at])
        if batch in frames:
            returned[at] = frames[batch]
        elif batch.group in in_batches or (sizes[batch] > 1 and _is_counted_done(batch, dump)):
            returned[at] = whole(entries[at].get("time_created_ns")) + 1


def _is_counted_done(batch: _Batch, dump: FlightDump) -> bool:
    return (batch.sends or batch.calls) <= dump.status.get(str(batch.group), (0, 0, 0))[2]


class _Batch(NamedTuple):
    """What the entries of one batch have in common. Which counter it raises, that of sends or of calls, is the torch's."""

    group: int
    sends: int
    calls: int


def _batch(entry: Mapping[str, Any]) -> _Batch:
    return _Batch(*(whole(entry.get(name)) for name in ("pg_id", "p2p_seq_id", "collective_seq_id")))


def _threads(words: Sequence[Any]) -> Array:
    """0 for the first thread that issued anything, and for those that older dumps do not tell."""
    if not words or len(words) == words.count(words[0]):
        return np.zeros(len(words), np.uint16)
    order = {word: number for number, word in enumerate(dict.fromkeys(word for word in words if isinstance(word, str)))}
    if len(order) < 2:
        return np.zeros(len(words), np.uint16)
    return np.array([order.get(word, 0) if isinstance(word, str) else 0 for word in words], np.uint16)


def _running(words: Array) -> Array:
    """The running digest after each word."""
    prefix, found = 0, []
    for word in words.tolist():
        prefix = extend(prefix, word)
        found.append(prefix)
    return np.array(found, np.uint64)


def _number_pairs(rows: Rows, pairwise: Array) -> None:
    """Number sends and receives per (group, peer, direction), as far as the ring remembers."""
    counts: dict[tuple[int, int, bool], int] = {}
    for at in np.flatnonzero(pairwise):
        pair = (int(rows["group"][at]), int(rows["root"][at]), int(rows["op"][at]) == Op.SEND)
        counts[pair] = counts.get(pair, 0) + 1
        rows["number"][at] = counts[pair]


def _global_rank(members: tuple[int, ...], peer: int) -> int:
    """`send 0->1` and `recv 0<-1` count within the group; -1 is none or any."""
    return members[peer] if 0 <= peer < len(members) else peer


def _by_number(name: str) -> tuple[bool, int, str]:
    number = whole_number(name)
    return number is None, number or 0, name


def _picked(entries: Sequence[Mapping[str, Any]], names: tuple[str, ...]) -> Iterable[tuple[Any, ...]]:
    """These fields of every entry; None where an entry lacks one."""
    try:
        return list(map(itemgetter(*names), entries))
    except KeyError:
        return [tuple(entry.get(name) for name in names) for entry in entries]


def _bytes_of(value: Any) -> bytes:
    """Equal bytes for equal values of a dump; what no dump holds is all alike."""
    try:
        return marshal.dumps(value, 2)
    except ValueError:
        return b""


def _ints(values: Sequence[Any]) -> Array:
    if None not in values:
        try:
            return np.array(values, np.int64)
        except (TypeError, ValueError, OverflowError):
            pass
    return np.array([whole(value) for value in values], np.int64)
