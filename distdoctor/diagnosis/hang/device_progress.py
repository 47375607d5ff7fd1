"""Who holds up a job whose devices work behind their hosts: from what each backend has enqueued and completed, group by group.

A rank's host enqueues calls, its device completes them in order. A member that has not enqueued what others have pending has
not come. A call that one member has completed and another has not stands on that other one's device. A rank is at the oldest
call that it has not completed; members that are still at an older one hold up everybody who is at this one. These are the edges
of a graph of ranks and calls; where it ends are the culprits, several where it has several ends. What the dumps do not say (a
rank without a dump, a group without counters) is an end as well, and nobody is accused in its place.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self

from distdoctor.diagnosis.check import NotApplicable
from distdoctor.recording.flight.backend_state import UNKNOWN, BackendState, GroupState, Pending
from distdoctor.recording.flight.moments import outrun_dumps, spread_group
from distdoctor.recording.flight.rows import LAUNCHER
from distdoctor.recording.recording import Recording

if TYPE_CHECKING:
    import networkx as nx

Node = tuple[Any, ...]  # ("rank", 3), ("call", group, number), ("unseen", 3)
PATIENCE_NS = 10_000_000_000  # as for live jobs; see diagnosis.hang.silence
USUAL_TIMEOUT_MS = 1_800_000  # where a dump names none: gloo's, and the longest that torch sets by itself
# Beyond the timeout nobody waits any more: torch dumps, waits a minute, and ends the process. What is left is the copying.
COPYING_NS = 3_600_000_000_000
FEWEST_TO_OUTVOTE = 3  # members of a group; of two that differ neither is the odd one


@dataclass(frozen=True)
class StuckCall:
    """A call that a rank's device is at."""

    rank: int
    group: GroupState
    pending: Pending

    @property
    def words(self) -> str:
        return f"{self.pending.words} of {self.group.words}"


@dataclass(frozen=True)
class Absence:
    """The host of a rank has not enqueued what `waiting` have pending; `at` is what its own device is at, None when it is at
    nothing: then its host stopped."""

    rank: int
    call: StuckCall
    waiting: tuple[int, ...]
    at: StuckCall | None = None
    last: int = UNKNOWN  # the last number that it has enqueued on the group; -1 for sends and receives


@dataclass(frozen=True)
class StoppedDevice:
    """The device of a rank has not completed a call that `completed_by` have."""

    rank: int
    call: StuckCall
    completed_by: tuple[int, ...]
    ahead: int = 0  # calls that its host has enqueued behind it
    behind: int = 1  # calls of the group that it has not completed and others have


@dataclass(frozen=True)
class Jam:
    """Every member is at this call, and none completes it. `odd` are those that alone have not started it, where that is noted,
    or whose host alone ran on."""

    call: StuckCall
    ranks: tuple[int, ...]
    odd: tuple[int, ...] = ()
    how: str = ""


@dataclass(frozen=True)
class WaitEdge:
    """One edge of a ring of waits: a rank is at a call that the next rank has not come to. `is_posted`: its host has."""

    rank: int
    call: StuckCall
    on: int
    is_posted: bool = False


@dataclass(frozen=True)
class WaitRing:
    """Ranks that wait for each other, edge by edge."""

    edges: tuple[WaitEdge, ...]


@dataclass(frozen=True)
class DeviceProgress:
    """The fact that checks on dumps ask for."""

    streams: ClassVar[frozenset[str]] = frozenset({"collectives"})
    states: Mapping[int, BackendState]
    ranks: tuple[int, ...]  # of the job, dumped or not

    @classmethod
    def of(cls, recording: Recording) -> Self:
        """NotApplicable: these are not dumps, or nothing in them is pending."""
        if recording.job.launcher != LAUNCHER or not recording.backend:
            raise NotApplicable("there are no flight recorder dumps")
        return cls(recording.backend, tuple(range(recording.world_size)))

    @classmethod
    def in_dumps(cls, recording: Recording) -> Self | None:
        """The same, None where there are no dumps."""
        try:
            return cls.of(recording)
        except NotApplicable:
            return None

    @cached_property
    def groups(self) -> dict[str, dict[int, GroupState]]:
        """Group name -> rank -> its state."""
        found: dict[str, dict[int, GroupState]] = defaultdict(dict)
        for rank, state in self.states.items():
            for group in state.groups:
                found[group.name][rank] = group
        return dict(found)

    @cached_property
    def members(self) -> dict[str, tuple[int, ...]]:
        return {
            name: max((state.members for state in states.values()), key=len) or tuple(sorted(states))
            for name, states in self.groups.items()
        }

    @cached_property
    def memberships(self) -> dict[str, dict[tuple[int, ...], tuple[int, ...]]]:
        """Name of a group that is in use -> members -> the ranks that take these for its members, most first: where a rank
        counts another one in that has other members in its own group of this name."""
        found: dict[str, dict[tuple[int, ...], tuple[int, ...]]] = {}
        for name, states in self.groups.items():
            own = {rank: state.own_members for rank, state in states.items() if state.own_members}
            said = {id(members): members for members in own.values()}  # ranks that say the same share one tuple, mostly
            lots: dict[tuple[int, ...], list[int]] = {members: [] for members in said.values()}
            if len(lots) < 2 or not any(state.pending for state in states.values()):
                continue
            for rank, mine in sorted(own.items()):
                lots[mine].append(rank)
            if any(own.get(other, members) != members for members in lots for other in members):
                most_first = sorted(lots.items(), key=lambda one: (-len(one[1]), one[0]))
                found[name] = {members: tuple(ranks) for members, ranks in most_first}
        return found

    @cached_property
    def fronts(self) -> dict[int, StuckCall]:
        """Rank -> the oldest call that it has not completed; a rank without one is left out."""
        found = {}
        for rank, state in self.states.items():
            calls = [StuckCall(rank, group, call) for group in state.groups for call in group.pending]
            if calls:
                found[rank] = min(calls, key=lambda one: (one.pending.order, one.group.name))
        return found

    @cached_property
    def moved_on(self) -> str:
        """What shows that the dumps are of different moments of a job that moved on, in words; "" where they can be of one. Then
        nobody is accused: where a dump ends its rank did not stay."""
        outrun = outrun_dumps(self.states)
        if outrun:
            return min(outrun.values(), key=lambda one: (one.issued - one.number, one.rank)).words
        spread = spread_group(self.states)
        if spread:
            ends = sorted({state.completed for state in spread.values()})
            name = next(iter(spread.values())).words
            return (
                f"of {name} the ranks have completed up to {len(ends)} different calls, from #{ends[0]} to #{ends[-1]}"
            )
        return ""

    @cached_property
    def stopped(self) -> dict[int, StoppedDevice]:
        """The ranks whose device has not completed what another member has: in an operation that nobody leaves before all are in
        it, that member's own device shows that everybody's had come."""
        found: dict[int, StoppedDevice] = {}
        if self.moved_on:
            return found
        for name, states in self.groups.items():
            if self._is_pairwise(name):
                continue
            furthest = max(state.completed for state in states.values())
            for rank, state in states.items():
                first = next((one for one in state.pending if not one.is_pairwise and not one.is_rooted), None)
                if first is None or first.number > furthest:
                    continue
                done = tuple(sorted(other for other, one in states.items() if one.completed >= first.number))
                call = StuckCall(rank, state, first)
                if rank not in found or first.order < found[rank].call.pending.order:
                    found[rank] = StoppedDevice(
                        rank, call, done, state.enqueued - first.number, furthest - first.number + 1
                    )
        return found

    @cached_property
    def graph(self) -> nx.DiGraph[Node]:
        """Ranks, the calls that their devices are at, and whom these calls wait for."""
        import networkx as nx  # in here: it takes 0.1 s, and most recordings hold no dumps

        graph: nx.DiGraph[Node] = nx.DiGraph()
        if self.moved_on:
            return graph
        for rank, front in self.fronts.items():
            graph.add_node(("rank", rank))
            if rank not in self.stopped:  # else its own device stands, whatever it waits for besides
                self._add(graph, front)
        return graph

    def _add(self, graph: nx.DiGraph[Node], call: StuckCall) -> None:
        """The edges of the call that a rank is at."""
        if call.pending.is_pairwise:
            self._add_pair(graph, call)
            return
        name, number = call.group.name, call.pending.number
        node: Node = ("call", name, number)
        if node not in graph:
            graph.add_edges_from((node, target) for target in self._held_by(name, number))
        if node in graph:
            graph.add_edge(("rank", call.rank), node)

    def _held_by(self, name: str, number: int) -> Iterator[Node]:
        """Whom a call waits for: those that have not enqueued it, or whose device is still before it."""
        states = self.groups[name]
        for rank in self.members[name]:
            state = states.get(rank)
            if rank not in self.states:
                yield "unseen", rank
            elif self._enqueued(name, rank) < number:
                yield ("rank", rank) if self._is_counted(name, rank) else ("unseen", rank)
            elif state is not None and self._is_before(rank, state, number):
                yield "rank", rank

    def _enqueued(self, name: str, rank: int) -> int:
        state = self.groups[name].get(rank)
        return state.enqueued if state is not None else UNKNOWN

    def _is_counted(self, name: str, rank: int) -> bool:
        """Whether it is known what this rank has enqueued on the group. A group that it has never used is not in its counters,
        which are there for others."""
        state = self.groups[name].get(rank)
        if state is not None:
            return state.is_counted
        return any(group.is_counted for group in self.states[rank].groups)

    def _is_before(self, rank: int, state: GroupState, number: int) -> bool:
        """Whether the device of this rank, which has the call pending, is at an older one of another group."""
        front = self.fronts.get(rank)
        mine = next((call for call in state.pending if not call.is_pairwise and call.number == number), None)
        return front is not None and mine is not None and front.pending is not mine

    def _add_pair(self, graph: nx.DiGraph[Node], call: StuckCall) -> None:
        """The edge of a send or a receive: to its other end, when that has not posted its part or is still before it."""
        other = self._other_end(call)
        if other is None:
            return
        if other not in self.states:
            graph.add_edge(("rank", call.rank), ("unseen", other))
        else:
            theirs = self._counterpart(call, other)
            if theirs is None or not self._is_at(other, call.group.name, theirs):
                graph.add_edge(("rank", call.rank), ("rank", other))

    def _other_end(self, call: StuckCall) -> int | None:
        """The rank that a call sends to or receives from; None where that is any, or none of the group's."""
        members = self.members[call.group.name]
        return members[call.pending.peer] if 0 <= call.pending.peer < len(members) else None

    def _is_at(self, rank: int, group: str, pending: Pending) -> bool:
        """Whether the device of a rank is at this send or receive, or at another one of its batch: they all go on together."""
        front = self.fronts[rank]
        together = pending.batch != (0, 0) and front.pending.is_pairwise and front.pending.batch == pending.batch
        return front.pending is pending or (together and front.group.name == group)

    def _counterpart(self, call: StuckCall, other: int) -> Pending | None:
        """The other end of a send or receive, None when it has not been posted (or is complete)."""
        theirs = self._counterparts(call, other)
        way = (call.pending.peer, call.pending.sends)
        mine = [one for one in call.group.pending if (one.peer, one.sends) == way]
        place = next(at for at, one in enumerate(mine) if one is call.pending)
        return theirs[place] if place < len(theirs) else None

    def _counterparts(self, call: StuckCall, other: int) -> list[Pending]:
        """What the other end has pending with this rank in the other direction."""
        state = self.groups[call.group.name].get(other)
        members = self.members[call.group.name]
        back = members.index(call.rank) if call.rank in members else UNKNOWN
        return [one for one in state.pending if one.peer == back and one.sends != call.pending.sends] if state else []

    def _is_pairwise(self, name: str) -> bool:
        return any(state.pairwise for state in self.groups[name].values())

    @cached_property
    def _ends(self) -> tuple[list[frozenset[Node]], set[int]]:
        """The ends of the graph: sets of nodes from which no edge leads out, without calls that wait for nobody; and the ranks
        that are not known about and that others wait for."""
        import networkx as nx

        condensed = nx.condensation(self.graph)
        ends = []
        unseen = set()
        for number, nodes in condensed.nodes(data="members"):
            if condensed.out_degree(number):
                continue
            unseen |= {node[1] for node in nodes if node[0] == "unseen"}
            if any(node[0] == "rank" for node in nodes):
                ends.append(frozenset(nodes))
        return ends, unseen

    @property
    def unseen(self) -> tuple[int, ...]:
        """Ranks without a dump, or without the counter that matters, that others wait for."""
        return tuple(sorted(self._ends[1]))

    @cached_property
    def absences(self) -> tuple[Absence, ...]:
        """The hosts that have not come: those with nothing left to do for their devices; else, where calls that everybody attends
        stand still in several groups at once, those that have left out a call which most of its group have pending."""
        ends = [node[1] for nodes in self._ends[0] if len(nodes) == 1 for node in nodes if node[1] not in self.stopped]
        stopped = [one for rank in sorted(ends) if rank not in self.fronts and (one := self._absence(rank)) is not None]
        if stopped or self.stopped or self.rings or len(self.jams) < 2:
            return tuple(stopped)
        return tuple(one for rank in sorted(ends) if (one := self._left_out(rank)) is not None)

    def missed_by(self, rank: int) -> Absence | None:
        """What a rank has not come to, dump or not; None where nobody waits for it, or it waits itself."""
        if rank in self.states:
            return next((one for one in self.absences if one.at is None and one.rank == rank), None)
        return self._absence(rank, "unseen") if rank in self.unseen else None

    def _absence(self, rank: int, kind: str = "rank") -> Absence | None:
        """What a rank has not come to: the call for which most wait, the oldest of these."""
        calls: list[tuple[StuckCall, tuple[int, ...]]] = []
        for node in self.graph.predecessors((kind, rank)):
            if node[0] == "rank":
                front = self.fronts[node[1]]
                calls.append((front, (node[1],)))
            else:
                waiting = tuple(sorted(one[1] for one in self.graph.predecessors(node)))
                calls.append((self.fronts[waiting[0]], waiting))
        if not calls:
            return None
        call, waiting = max(calls, key=lambda one: (len(one[1]), -one[0].pending.created_ns, one[0].group.name))
        last = UNKNOWN if call.pending.is_pairwise else self._enqueued(call.group.name, rank)
        return Absence(rank, call, waiting, None, last)

    def _left_out(self, rank: int) -> Absence | None:
        """A call behind the front of others that this rank alone has not enqueued."""
        for name, states in sorted(self.groups.items()):
            mine = self._enqueued(name, rank)
            waiting = {
                r: one for r, s in states.items() for one in s.pending if not one.is_pairwise and one.number == mine + 1
            }
            size = len(self.members[name])
            if rank in self.members[name] and FEWEST_TO_OUTVOTE <= size == len(waiting) + 1:
                first = min(waiting)
                call = StuckCall(first, states[first], waiting[first])
                return Absence(rank, call, tuple(sorted(waiting)), self.fronts.get(rank), mine)
        return None

    @cached_property
    def rings(self) -> tuple[WaitRing, ...]:
        """The ranks that wait for each other, one ring of each knot."""
        knots = [nodes for nodes in self._ends[0] if sum(node[0] == "rank" for node in nodes) > 1]
        return tuple(sorted((self._ring(nodes) for nodes in knots), key=lambda ring: ring.edges[0].rank))

    def _ring(self, nodes: frozenset[Node]) -> WaitRing:
        import networkx as nx

        knot = nx.DiGraph(sorted(self.graph.subgraph(nodes).edges, key=str))
        first = min(node for node in nodes if node[0] == "rank")
        path = [edge[0] for edge in nx.find_cycle(knot, source=first)]
        at = path.index(min(node for node in path if node[0] == "rank"))
        ranks = [node[1] for node in path[at:] + path[:at] if node[0] == "rank"]
        after = [*ranks[1:], ranks[0]]
        return WaitRing(tuple(self._edge(rank, on) for rank, on in zip(ranks, after, strict=True)))

    def _edge(self, rank: int, on: int) -> WaitEdge:
        call = self.fronts[rank]
        if call.pending.is_pairwise:
            return WaitEdge(rank, call, on, self._counterpart(call, on) is not None)
        return WaitEdge(rank, call, on, self._enqueued(call.group.name, on) >= call.pending.number)

    @cached_property
    def jams(self) -> tuple[Jam, ...]:
        """Calls that all of their members are at, and that do not complete. Only the ends of the graph count."""
        ends = {node[1] for nodes in self._ends[0] if len(nodes) == 1 for node in nodes}
        found: dict[tuple[str, object], Jam] = {}
        for rank in sorted(ends & self.fronts.keys() - self.stopped.keys()):
            front = self.fronts[rank]
            members = self.members[front.group.name]
            if front.pending.is_pairwise:
                other = self._other_end(front)
                if other is None:
                    continue  # at a call whose other end nobody knows: no more is said than that it is pending
                members = tuple(sorted((rank, other)))
            key = (front.group.name, members if front.pending.is_pairwise else front.pending.number)
            if key not in found:
                found[key] = Jam(front, members, *self._odd(front, members))
        return tuple(found.values())

    def _odd(self, front: StuckCall, members: tuple[int, ...]) -> tuple[tuple[int, ...], str]:
        """Whose device has not started the call that others have, or whose host alone ran on."""
        at_it = {rank: self.fronts[rank] for rank in members if rank in self.fronts}
        if len(at_it) < len(members):
            return (), ""
        begun = {rank for rank, one in at_it.items() if self._has_started(one)}
        if begun and len(begun) < len(members):
            return tuple(sorted(at_it.keys() - begun)), "its device has not started it, but those of the others have"
        enqueued = {rank: one.group.enqueued for rank, one in at_it.items()}
        furthest = max(enqueued.values(), default=0)
        most = [rank for rank, number in enqueued.items() if number == furthest]
        if not front.pending.is_pairwise and len(set(enqueued.values())) == 2 and len(most) == 1 < len(members) - 1:
            return tuple(most), "only its host ran ahead, as happens when a device has failed"
        return (), ""

    def _has_started(self, call: StuckCall) -> bool:
        by_count = not call.pending.is_pairwise and call.group.started >= call.pending.number
        return call.pending.state == "started" or by_count

    @property
    def stood_long(self) -> bool:
        """Whether the dumps were written so long after the last call that the job had stopped, as far as the files tell."""
        return self._waited_ns >= PATIENCE_NS and not self.is_undated

    @property
    def waits_on(self) -> bool:
        """Whether calls are pending in dumps of one moment, and no file says that the next call was only just made: a hang, as
        far as anybody can see who has nothing but the dumps."""
        return bool(self.fronts) and not self.moved_on and self._waited_ns >= PATIENCE_NS

    @cached_property
    def is_undated(self) -> bool:
        """Whether the files are younger than any job could have waited: then their times are those of a copy, and nothing says
        whether the job stood still when it was dumped or was on its way."""
        timeouts = [call.timeout_ms for s in self.states.values() for group in s.groups for call in group.pending]
        longest = max(timeouts, default=0) or USUAL_TIMEOUT_MS
        return self._waited_ns > longest * 1_000_000 + COPYING_NS

    @cached_property
    def _waited_ns(self) -> int:
        """How long before the dumps were written the last call of all was enqueued; copying a file can make that longer."""
        latest = max((call.created_ns for s in self.states.values() for g in s.groups for call in g.pending), default=0)
        return max((state.written_ns for state in self.states.values()), default=0) - latest if latest else 0
