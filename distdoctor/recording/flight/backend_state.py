"""What the backend itself knows of the collectives of one rank: how far each group has come, and what it has not completed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from distdoctor.recording.flight.entries import FlightDump, group_of, op_of, text, whole
from distdoctor.recording.rank_set import named


@dataclass(frozen=True)
class Pending:
    """An operation that the backend has accepted and not completed. `state` is torch's word: `scheduled`, `started`."""

    operation: str
    number: int
    state: str

    def __str__(self) -> str:
        return f"{self.operation} #{self.number} ({self.state})"


@dataclass(frozen=True)
class GroupState:
    """One group as one rank's backend counts it: the last number enqueued, started, completed; -1 is none or not noted."""

    name: str
    description: str
    enqueued: int
    started: int
    completed: int
    pending: tuple[Pending, ...] = ()  # oldest first


@dataclass(frozen=True)
class BackendState:
    """One rank's groups, those that it has used."""

    rank: int
    groups: tuple[GroupState, ...]


def state_of(rank: int, dumps: Iterable[FlightDump]) -> BackendState:
    """The state in the dumps of a rank, one per backend.

    gloo says `scheduled` for ever (torch 2.15): there only `retired` tells what is complete.
    """
    return BackendState(rank, tuple(group for dump in dumps for group in _groups(dump)))


def _groups(dump: FlightDump) -> Iterator[GroupState]:
    entries: dict[str, list[Mapping[str, Any]]] = {}
    for entry in dump.entries:
        entries.setdefault(str(whole(entry.get("pg_id"))), []).append(entry)
    return (_group(dump, number, entries[number]) for number in sorted(entries))


def _group(dump: FlightDump, number: str, entries: Sequence[Mapping[str, Any]]) -> GroupState:
    name, description = group_of(entries[-1])
    together = [entry for entry in entries if not entry.get("is_p2p")]
    enqueued, started, completed = dump.status.get(number, (-1, -1, -1))
    pending = tuple(
        Pending(op_of(text(e.get("profiling_name"))).word, whole(e.get("collective_seq_id")), text(e.get("state")))
        for e in together
        if not e.get("retired") and text(e.get("state")) != "completed"
    )
    last = whole(together[-1].get("collective_seq_id")) if together else -1
    return GroupState(name, description, max(enqueued, last), started, completed, pending)


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
