"""What the backend itself knows of the collectives of one rank: how far each group has come, and what it has not completed.

The host enqueues, the device completes: a rank's progress is two numbers a group. torch counts the last one enqueued, started
and completed in `pg_status`; where that is missing the entries tell, as far as they reach.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from distdoctor.recording.flight.entries import FlightDump, group_of, op_of, peer_of, text, whole
from distdoctor.recording.rank_set import named
from distdoctor.recording.trace.layout import FROM_ALL, POINT_TO_POINT, ROOTED, whole_number

UNKNOWN = -1
MOST_PENDING = 512  # of one rank: a device that stands still while its host runs on fills a whole ring
_PAIRWISE = frozenset(op.word for op in POINT_TO_POINT)


@dataclass(frozen=True)
class Pending:
    """An operation that the backend has accepted and not completed. `state` is torch's word: `scheduled`, `started`.

    `peer` is the other end of a send or receive, counted within the group (-1: any, or a collective); `order` is the place in the
    order of issue. A rooted operation may be complete on one member long before the others have it. `batch` is equal for the
    sends and receives of one batch, which wait for nothing but their other ends. `timeout_ms`: after so long torch's watchdog
    ends the job; 0 where nobody says.
    """

    operation: str
    number: int
    state: str
    peer: int = -1
    order: int = 0
    created_ns: int = 0
    is_rooted: bool = False
    batch: tuple[int, int] = (0, 0)
    timeout_ms: int = 0

    def __str__(self) -> str:
        return f"{self.operation} #{self.number} ({self.state})"

    @property
    def words(self) -> str:
        """`all_reduce #128`, `send to group rank 3`."""
        if self.peer < 0:
            return str(self.operation) if self.is_pairwise else f"{self.operation} #{self.number}"
        return f"{self.operation} {'to' if self.sends else 'from'} rank {self.peer} of the group"

    @property
    def is_pairwise(self) -> bool:
        """Whether it is a send or a receive, whatever is known of its other end."""
        return self.operation in _PAIRWISE

    @property
    def sends(self) -> bool:
        return self.operation == "send"


@dataclass(frozen=True)
class GroupState:
    """One group as one rank's backend counts it: the last number enqueued, started, completed.

    -1 is none or not noted, as torch writes it; `is_counted` says that none is meant. `pairwise`: the rank has sent or received
    on the group, and then torch's counters count that too. `members` are global ranks, () where nobody says.
    """

    name: str
    description: str
    enqueued: int
    started: int
    completed: int
    pending: tuple[Pending, ...] = ()  # oldest first
    pairwise: bool = False
    is_counted: bool = True
    members: tuple[int, ...] = ()
    own_members: tuple[int, ...] = ()  # as this rank says, where it does; `members` is what most of them know
    attended: int = 0  # the last call in the entries that is complete and that no member can be missing from; 0: none

    @property
    def words(self) -> str:
        """`default_pg`, `TENSOR_MODEL_PARALLEL_GROUP 35`."""
        both = self.description and self.name and self.description != "default_pg"
        return f"{self.description} {self.name}" if both else self.description or self.name


@dataclass(frozen=True)
class BackendState:
    """One rank's groups, those that it has used."""

    rank: int
    groups: tuple[GroupState, ...]
    written_ns: int = 0
    last_ns: int = 0  # wall clock: the last that the dump holds, a call issued or seen to be complete


@dataclass(frozen=True)
class LastEntry:
    """The latest entry of a group in a dump: the last collective number there, and whether there are sends or receives."""

    name: str
    description: str
    number: int
    pairwise: bool
    done: int  # the last collective number that is complete in the entries; 0: none
    attended: int = 0  # the same of operations in which every member needs every other


def state_of(rank: int, dumps: Iterable[FlightDump]) -> BackendState:
    """The state in the dumps of a rank, one per backend.

    gloo says `scheduled` for ever (torch 2.15): there only `retired` tells what is complete.
    """
    groups: list[GroupState] = []
    for dump in dumps:
        done = [bool(entry.get("retired")) or entry.get("state") == "completed" for entry in dump.entries]
        last: dict[str, LastEntry] = {}
        for entry, is_done in zip(dump.entries, done, strict=True):
            _note(last, entry, is_done)
        groups += groups_of(dump, [at for at, is_done in enumerate(done) if not is_done], last)
    return BackendState(rank, tuple(groups))


def _note(last: dict[str, LastEntry], entry: Mapping[str, Any], is_done: bool) -> None:
    number, pairwise = str(whole(entry.get("pg_id"))), bool(entry.get("is_p2p"))
    name, description = group_of(entry)
    known = last.get(number)
    sequence = 0 if pairwise else whole(entry.get("collective_seq_id"))
    done = sequence if is_done else 0
    attended = done if op_of(text(entry.get("profiling_name"))) in FROM_ALL else 0
    if known is not None:
        sequence, done, pairwise = max(sequence, known.number), max(done, known.done), pairwise or known.pairwise
        attended = max(attended, known.attended)
    last[number] = LastEntry(name, description, sequence, pairwise, done, attended)


def groups_of(dump: FlightDump, open_at: Sequence[int], last: Mapping[str, LastEntry]) -> tuple[GroupState, ...]:
    """The groups of one dump. `open_at` are the places of the entries that are not complete, `last` is by pg_id."""
    pending: dict[str, list[Pending]] = {}
    for at in open_at[:MOST_PENDING]:
        entry = dump.entries[at]
        pending.setdefault(str(whole(entry.get("pg_id"))), []).append(_pending(entry))
    names = _names(dump, last)
    whole_ring = (
        bool(dump.entries) and not whole(dump.entries[0].get("record_id")) and any(g.done for g in last.values())
    )
    found = []
    for number in sorted({*names, *last}, key=lambda word: (whole_number(word) is None, whole_number(word) or 0)):
        found.append(_group(dump, number, last.get(number), tuple(pending.get(number, ())), names, whole_ring))
    return tuple(found)


def _group(
    dump: FlightDump,
    number: str,
    last: LastEntry | None,
    pending: tuple[Pending, ...],
    names: Mapping[str, str],
    whole_ring: bool,
) -> GroupState:
    enqueued, started, completed = dump.status.get(number, (UNKNOWN, UNKNOWN, UNKNOWN))
    is_counted = number in dump.status or last is not None or whole_ring
    pairwise = last is not None and last.pairwise
    if pairwise:  # torch counts sends and collectives with one counter: only the entries keep them apart
        enqueued = completed = started = UNKNOWN
    first = min((one.number for one in pending if not one.is_pairwise), default=0)
    if last is not None:
        enqueued = max(enqueued, last.number)
        completed = max(completed, first - 1 if first else last.done)
    name = names.get(number) or (last.name if last else number)
    description = last.description if last and last.description else dump.descriptions.get(name, "")
    members = dump.groups.get(name, ())
    attended = last.attended if last is not None else 0
    return GroupState(
        name, description, enqueued, started, completed, pending, pairwise, is_counted, members, members, attended
    )


def _pending(entry: Mapping[str, Any]) -> Pending:
    name = text(entry.get("profiling_name"))
    op = op_of(name)
    peer, pairwise = peer_of(name, op), op in POINT_TO_POINT
    return Pending(
        operation=op.word,
        number=whole(entry.get("p2p_seq_id" if pairwise else "collective_seq_id")),
        state=text(entry.get("state")),
        peer=peer,
        order=whole(entry.get("record_id")),
        created_ns=whole(entry.get("time_created_ns")),
        is_rooted=op in ROOTED,
        batch=(whole(entry.get("p2p_seq_id")), whole(entry.get("collective_seq_id"))) if pairwise else (0, 0),
        timeout_ms=whole(entry.get("timeout_ms")),
    )


def _names(dump: FlightDump, last: Mapping[str, LastEntry]) -> dict[str, str]:
    """pg_id -> name of the group. Only entries tell it outright; torch numbers the groups of a process in the order in which
    they are made, and names them in that order too: so where there are as many counters as groups they belong together."""
    known = {number: one.name for number, one in last.items()}
    numbers = sorted((key for key in dump.status if whole_number(key) is not None), key=int)
    names = sorted((name for name in dump.groups if whole_number(name) is not None), key=int)
    if len(numbers) == len(names) == len(dump.groups):
        paired = dict(zip(numbers, names, strict=True))
        if all(paired.get(number, name) == name for number, name in known.items()):
            return paired | known
    return known


def told(states: Mapping[int, BackendState]) -> list[str]:
    """One line per group and set of ranks that say the same: `ranks 0-2  default_pg: all_reduce #5 (scheduled) not complete`."""
    lines: dict[tuple[str, str], list[int]] = {}
    for rank, state in sorted(states.items()):
        for group in state.groups:
            lines.setdefault((group.description or group.name, _progress(group)), []).append(rank)
    return [f"{named(ranks)}  {name}: {words}" for (name, words), ranks in sorted(lines.items())]


def _progress(group: GroupState) -> str:
    if group.pending:
        more = f" and {len(group.pending) - 1} more" if len(group.pending) > 1 else ""
        return f"{group.pending[0]}{more} not complete"
    return f"complete up to #{group.enqueued}" if group.enqueued >= 0 else "nothing pending"
