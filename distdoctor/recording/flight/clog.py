"""torchcomms' `clog` (format 1), read as flight recorder dumps are: one text file per rank, one line per event.

A signature line says once what a call is; `Q` is the host handing it to the device, `S` and `E` are the device beginning and
ending it. `S` and `E` do not name the call, only its kind: calls of a kind are taken to begin and end in the order in which they
were issued. A log without any `S` or `E` (written without the option `LIFECYCLE`) tells what hosts have issued, and nothing of
what devices have completed. What a CUDA graph replays is logged without an order: such calls are counted, not aligned.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from distdoctor.errors import NothingToInspect, UnreadableRecording
from distdoctor.recording.files import head_of, opened
from distdoctor.recording.flight.dumps import MOST_RANKS, rank_in
from distdoctor.recording.flight.entries import FlightDump, op_of
from distdoctor.recording.flight.rows import recording_of
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Recording, Trouble
from distdoctor.recording.trace.layout import POINT_TO_POINT, ReduceOp

LARGEST_BYTES = 8 << 30  # some 100 bytes a call: more than a month of training
KEPT_CALLS = 4_000  # of a rank, the latest ones; more while an older one is not complete
MOST_FILES = 1 << 16  # one behind the other in a stream
MOST_CALLS = 100_000  # of a rank, whatever is not complete
MOST_KINDS = 100_000  # of calls, in one file
MOST_COMMUNICATORS = 4_096  # in one file
_LONGEST_LINE = 1 << 20  # a split of a hundred thousand ranks lists them all
_HEAD = re.compile(rb"V\|\d{1,9}\|base_timestamp=")
_VERSION = re.compile(r"V\|1\|base_timestamp=(\d{1,12})(?:\.(\d{1,9}))?$")
_EVENT = re.compile(
    r"(?:G(\d{1,20})\|)?(?:R(\d{1,20})\|)?C(\d{1,20})\|([QSEW])(?:\|work_id=\d{1,20})?\|\+(\d{1,12})(?:\.(\d{1,9}))?$"
)
_SIGNATURE = re.compile(r"C(\d{1,20})\|sig\|(\w{1,60})\|(.*)$")
_RANKS = re.compile(r"\d{1,9}(?:,\d{1,9})*$")
_DTYPES = {"f32": "Float", "f64": "Double", "f16": "Half", "bf16": "BFloat16", "i64": "Long", "i32": "Int", "i16": "Short",
           "i8": "Char", "u8": "Byte", "bool": "Bool", "fp8e4m3": "Float8_e4m3fn", "fp8e5m2": "Float8_e5m2"}  # fmt: skip
_REDUCE_OPS = {"prod": "PRODUCT"}
_UNEQUAL = frozenset({"all_gather_v", "reduce_scatter_v", "all_to_all_v_single"})  # each member has its own sizes


@dataclass(frozen=True)
class _Kind:
    """What a signature line says."""

    op: str
    comm: str
    name: str  # as torch's flight recorder writes it, with what it leaves out
    sizes: tuple[list[list[int]], list[list[int]]]
    dtypes: list[str]

    @property
    def pairwise(self) -> bool:
        return op_of(self.name) in POINT_TO_POINT

    @property
    def is_batch(self) -> bool:
        return self.op == "batch_op_issue"  # of sends and receives that are not told one by one


@dataclass
class _Issued:
    """One call. `number` counts the collectives of its communicator."""

    kind: _Kind
    number: int
    at_ns: int
    started: bool = False
    done_ns: int = 0


@dataclass
class _Communicator:
    rank: int = -1  # of this process in it, -1: not told
    size: int = 0  # 0: not told
    ranks: tuple[int, ...] = ()  # of its parent, in order; () for a communicator that was not split off
    parent: str = ""
    count: int = 0  # collectives issued


@dataclass
class ClogFile:
    """One rank's log. `tells_completion`: the devices' events are in it. `left_open` is what it shows to be unfinished."""

    path: Path
    began_ns: int = 0
    communicators: dict[str, _Communicator] = field(default_factory=dict)
    calls: deque[_Issued] = field(default_factory=deque)
    forgotten: int = 0
    tells_completion: bool = False
    left_open: list[str] = field(default_factory=list)
    ended_ns: int = 0
    _kinds: dict[int, _Kind] = field(default_factory=dict)
    _to_start: dict[int, deque[_Issued]] = field(default_factory=lambda: defaultdict(deque))
    _to_end: dict[int, deque[_Issued]] = field(default_factory=lambda: defaultdict(deque))
    _replayed: Counter[tuple[int, int]] = field(default_factory=Counter)  # (graph, kind) -> begun and not ended

    def begin(self, head: bytes) -> None:
        """Take in the first line. ValueError: of another version."""
        match = _VERSION.match(head.decode("utf-8", "replace").strip())
        if match is None:
            raise ValueError("it does not begin with V|1|base_timestamp=")
        self.began_ns = _nanoseconds(match[1], match[2])

    def take(self, line: bytes) -> None:
        """Take in a line as it stands in the file: one that is being written when the process dies is no line."""
        if line.endswith(b"\n"):
            self.read(line.decode("utf-8", "replace").rstrip("\r\n"))

    def read(self, line: str) -> None:
        """Take in one line. What is not understood is left out."""
        if event := _EVENT.match(line):
            self._event(event)
        elif signature := _SIGNATURE.match(line):
            self._signature(signature)
        elif line.startswith("new_comm|"):
            self._new_communicator(_fields(line))
        elif line.startswith("split|"):
            self._split(_fields(line))

    def _signature(self, match: re.Match[str]) -> None:
        if len(self._kinds) >= MOST_KINDS:
            raise ValueError(f"it has more than {MOST_KINDS} kinds of calls")
        about = _fields(match[3])
        self._kinds.setdefault(int(match[1]), _kind(match[2], about))

    def _new_communicator(self, about: Mapping[str, str]) -> None:
        known = self._communicator(about.get("comm", ""))
        known.rank, known.size = _whole(about.get("rank")), min(_whole(about.get("world_size")), MOST_RANKS)

    def _split(self, about: Mapping[str, str]) -> None:
        ranks = about.get("ranks", "")
        if _RANKS.match(ranks):  # a rank that is in no part splits off nothing
            known = self._communicator(about.get("child", ""))
            known.ranks, known.parent = tuple(map(int, ranks.split(","))), about.get("parent", "")

    def _communicator(self, name: str) -> _Communicator:
        if len(self.communicators) >= MOST_COMMUNICATORS and name not in self.communicators:
            raise ValueError(f"it has more than {MOST_COMMUNICATORS} communicators")
        return self.communicators.setdefault(name, _Communicator())

    def _event(self, match: re.Match[str]) -> None:
        number, what = int(match[3]), match[4]
        kind = self._kinds.get(number)
        at_ns = self.began_ns + _nanoseconds(match[5], match[6])
        self.ended_ns = max(self.ended_ns, at_ns)
        if kind is None:
            return
        self.tells_completion |= what in "SE"
        if match[2]:
            self._replayed[int(match[1] or 0), number] += {"S": 1, "E": -1}.get(what, 0)
        elif what == "Q":
            self._issue(number, kind, at_ns, captured=bool(match[1]))
        elif not match[1]:
            self._progress(number, what, at_ns)

    def _issue(self, number: int, kind: _Kind, at_ns: int, *, captured: bool) -> None:
        comm = self._communicator(kind.comm)
        comm.count += not (kind.pairwise or kind.is_batch)
        call = _Issued(kind, comm.count, at_ns)
        self.calls.append(call)
        if captured:  # recorded into a graph: no device waits for it
            call.started, call.done_ns = True, at_ns
        else:
            self._to_start[number].append(call)
            self._to_end[number].append(call)
        while len(self.calls) > KEPT_CALLS and (self.calls[0].done_ns or len(self.calls) > MOST_CALLS):
            self.calls.popleft()
            self.forgotten += 1

    def _progress(self, number: int, what: str, at_ns: int) -> None:
        waiting = {"S": self._to_start, "E": self._to_end}.get(what, {}).get(number)
        if not waiting:
            return
        call = waiting.popleft()
        call.started = True
        if what == "E":
            call.done_ns = at_ns

    def close(self) -> None:
        """The file is read to its end."""
        begun = {key: count for key, count in self._replayed.items() if count > 0}
        for (graph, number), count in sorted(begun.items())[:4]:
            self.left_open.append(f"{count} {self._kinds[number].op} that CUDA graph {graph} replayed did not end")

    @property
    def rank(self) -> int | None:
        """As the largest communicator that was not split off counts it; None where no line tells."""
        known = [comm for comm in self.communicators.values() if comm.rank >= 0]
        return max(known, key=lambda comm: comm.size).rank if known else None

    def members(self, name: str) -> tuple[int, ...]:
        """The global ranks of a communicator, () where the log does not tell them."""
        largest = max((comm.size for comm in self.communicators.values()), default=0)
        comm = self.communicators.get(name, _Communicator())
        path: list[tuple[int, ...]] = []
        while comm.ranks and len(path) < MOST_COMMUNICATORS:
            path.append(comm.ranks)
            comm = self.communicators.get(comm.parent, _Communicator())
        if comm.ranks or not comm.size or comm.size < largest:
            return ()
        found: tuple[int, ...] = tuple(range(comm.size))
        for ranks in reversed(path):
            if max(ranks) >= len(found):
                return ()
            found = tuple(found[rank] for rank in ranks)
        return found


def _fields(line: str) -> dict[str, str]:
    return dict(part.split("=", 1) for part in line.split("|") if "=" in part)


def _whole(word: str | None) -> int:
    return int(word) if word and word.isascii() and word.isdigit() and len(word) < 10 else -1


def _nanoseconds(seconds: str, fraction: str | None) -> int:
    return int(seconds) * 1_000_000_000 + int((fraction or "0").ljust(9, "0"))


def _kind(op: str, about: Mapping[str, str]) -> _Kind:
    sides = ("in", "out")
    sizes = tuple([] if op in _UNEQUAL else _sizes(about, side) for side in sides)
    comm, peer, me = about.get("comm", ""), _whole(about.get("peer")), 0
    reduce_op = about.get("red_op", "")
    reduce_op = _REDUCE_OPS.get(reduce_op, reduce_op.upper())
    name = f"torchcomms:{op}"
    if op in ("send", "recv"):
        name += f" {me}{'->' if op == 'send' else '<-'}{max(peer, 0)}"
    if reduce_op in ReduceOp.__members__:
        name += f" op={reduce_op}"
    if _whole(about.get("root")) >= 0:
        name += f" root={about['root']}"
    dtype = _DTYPES.get(about.get("dtype", ""), "")
    return _Kind(op, comm, name, (sizes[0], sizes[1]), [dtype])


def _sizes(about: Mapping[str, str], side: str) -> list[list[int]]:
    words = about.get(f"{side}_counts") or about.get(f"{side}_count") or ""
    return [[int(word)] for word in words.split(",")[:1024] if word.isascii() and word.isdigit() and len(word) < 19]


def looks_like_clog(path: Path) -> bool:
    """Whether the first bytes are those of a clog file."""
    return begins_like_clog(head_of(path, 64))


def begins_like_clog(head: bytes) -> bool:
    """Whether these are the first bytes of a clog file."""
    return _HEAD.match(head) is not None


def read_clog(path: Path) -> ClogFile:
    """One rank's log.

    UnreadableRecording: it is none, or of a version that is not known.
    """
    found = ClogFile(path)
    try:
        if path.stat().st_size > LARGEST_BYTES:
            raise ValueError("it is larger than any that a training writes")
        with opened(path) as file:
            found.begin(file.readline(256))
            while line := file.readline(_LONGEST_LINE):
                found.take(line)
    except (OSError, ValueError, RecursionError) as trouble:
        raise _torn(str(path), trouble) from None
    found.close()
    return found


def _torn(name: str, trouble: Exception) -> UnreadableRecording:
    return UnreadableRecording(
        f"{name} is no clog of torchcomms, or a torn one: {str(trouble)[:200]}",
        way_out="Copy it again; the other ranks can be examined without it.",
    )


def read_clog_stream(stream: BinaryIO) -> Recording:
    """The recording in one or more logs, one after another in a stream (`cat clog_*`), each of which says its rank.

    NothingToInspect: none says it. UnreadableRecording: one of them is torn.
    """
    files: list[ClogFile] = []
    sent = 0
    try:
        while line := stream.readline(_LONGEST_LINE):
            sent += len(line)
            if sent > LARGEST_BYTES or len(files) > MOST_FILES:
                raise ValueError("it is longer than all that a job writes")
            if begins_like_clog(line):
                files.append(ClogFile(Path("the standard input")))
                files[-1].begin(line)
            else:
                files[-1].take(line)
    except (OSError, ValueError, RecursionError) as trouble:
        raise _torn("the text on standard input", trouble) from None
    for file in files:
        file.close()
    return _recording_in(files, [])


def read_clogs(paths: Iterable[Path]) -> Recording:
    """The recording in the logs of a job's ranks. Files that cannot be read become troubles.

    NothingToInspect: there is no file. UnreadableRecording: none of them can be read.
    """
    troubles: list[Trouble] = []
    files: list[ClogFile] = []
    for path in sorted(paths):
        try:
            files.append(read_clog(path))
        except UnreadableRecording as error:
            rank = _rank_in_name(path)
            troubles.append(Trouble(f"{error}. {error.way_out}", -1 if rank is None else rank, fault="unreadable"))
    return _recording_in(files, troubles)


def _recording_in(files: Iterable[ClogFile], troubles: list[Trouble]) -> Recording:
    by_rank = _by_rank(files, troubles)
    if not by_rank and troubles:
        raise UnreadableRecording(troubles[0].what, way_out="No other log is there.")
    if not by_rank:
        raise NothingToInspect("there is no clog of torchcomms", way_out="Point at the folder with those of all ranks.")
    tells = any(file.tells_completion for file in by_rank.values())
    unequal = _unequal(by_rank)
    troubles += _left_open(by_rank, unequal, tells=tells)
    dumps = (_dump(rank, file, unequal, tells=tells) for rank, file in sorted(by_rank.items()))
    return recording_of(dumps, troubles)


def _by_rank(files: Iterable[ClogFile], troubles: list[Trouble]) -> dict[int, ClogFile]:
    """Each file by its rank: as its communicators tell, else its name. Of two of one rank the later one is taken."""
    found: dict[int, ClogFile] = {}
    for file in files:
        rank = file.rank if file.rank is not None else _rank_in_name(file.path)
        if rank is None or rank >= MOST_RANKS:
            troubles.append(Trouble(f"{file.path} does not say which rank it is of", fault="unreadable"))
            continue
        known = found.get(rank)
        if known is not None:
            kept, left = (file, known) if file.began_ns > known.began_ns else (known, file)
            words = f"{kept.path} and {left.path} are both of rank {rank}: took the later one"
            troubles.append(Trouble(words, -1, fault="unreadable"))
            file = kept
        found[rank] = file
    return found


def _rank_in_name(path: Path) -> int | None:
    return rank_in(path.name.removesuffix(".log").removesuffix(".txt"))


def _unequal(by_rank: Mapping[int, ClogFile]) -> frozenset[str]:
    """Communicators of which two ranks say that they are the same member, or that have more users than members: several that
    are called alike."""
    users: dict[str, list[_Communicator]] = defaultdict(list)
    for file in by_rank.values():
        for name, comm in file.communicators.items():
            if not comm.ranks:
                users[name].append(comm)
    return frozenset(
        name
        for name, comms in users.items()
        if len({comm.size for comm in comms if comm.size}) > 1
        or max(Counter(comm.rank for comm in comms if comm.rank >= 0).values(), default=0) > 1
    )


def _left_open(by_rank: Mapping[int, ClogFile], unequal: frozenset[str], *, tells: bool) -> Iterator[Trouble]:
    """What the logs do not answer: nobody may take their silence for health."""
    if not tells:
        words = (
            "the logs hold no S and E events (clog writes them with events=['LIFECYCLE']): what completed is not known"
        )
        yield Trouble(words, fault="unfinished")
    if unequal:
        yield Trouble(f"several communicators are called {', '.join(sorted(unequal)[:4])}", fault="unfinished")
    words_of: dict[str, list[int]] = defaultdict(list)
    for rank, file in by_rank.items():
        for words in file.left_open:
            words_of[words].append(rank)
    for words, ranks in list(words_of.items())[:8]:
        yield Trouble(f"{named(ranks)}: {words}", fault="unfinished")


def _dump(rank: int, file: ClogFile, unequal: frozenset[str], *, tells: bool) -> FlightDump:
    """The log as torch's flight recorder would have written it."""
    keys = {name: _key(file, name) for name in file.communicators}
    numbers = {name: number for number, name in enumerate(keys)}
    entries = [
        _entry(file.forgotten + at, call, numbers[call.kind.comm], keys[call.kind.comm], tells=tells)
        for at, call in enumerate(file.calls)
        if call.kind.comm not in unequal
    ]
    groups = {keys[name]: members for name in keys if name not in unequal and (members := file.members(name))}
    return FlightDump(rank, str(file.path), entries, groups, library="torchcomms", written_ns=file.ended_ns)


def _key(file: ClogFile, name: str) -> str:
    """Parts of one split are called alike, each by its own members."""
    members = file.members(name) if file.communicators[name].ranks else ()
    return f"{name} of {named(members)}" if members else name


def _entry(number: int, call: _Issued, comm: int, name: str, *, tells: bool) -> dict[str, Any]:
    kind, done = call.kind, bool(call.done_ns) or not tells or call.kind.is_batch
    return {
        "record_id": number,
        "pg_id": comm,
        "process_group": (name, ""),
        "collective_seq_id": 0 if kind.pairwise or kind.is_batch else call.number,
        "p2p_seq_id": number if kind.pairwise or kind.is_batch else 0,
        "is_p2p": kind.pairwise or kind.is_batch,
        "profiling_name": kind.name,
        "input_sizes": kind.sizes[0],
        "output_sizes": kind.sizes[1],
        "input_dtypes": kind.dtypes,
        "output_dtypes": kind.dtypes,
        "state": "completed" if done else "started" if call.started else "scheduled",
        "retired": done,
        "time_created_ns": call.at_ns,
        "time_discovered_completed_ns": call.done_ns,
    }
