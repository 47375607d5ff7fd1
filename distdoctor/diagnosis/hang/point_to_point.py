"""Sends and receives, matched as torch matches them: per sender, receiver and tag, in order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from distdoctor.diagnosis.facts.collectives import Collectives
from distdoctor.diagnosis.hang.alignment import elements, reads_the_same
from distdoctor.recording.recording import Call
from distdoctor.recording.trace.layout import Op

Lane = tuple[str, int, int]  # group, sender, receiver
ANYBODY = -1  # the sender of a receive that names none


@dataclass(frozen=True)
class Pairs:
    """All that was sent and received, by lane, in the order of issue."""

    facts: Collectives
    sends: dict[Lane, list[Call]]
    receives: dict[Lane, list[Call]]
    _spare: dict[tuple[str, int], bool] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(cls, facts: Collectives) -> Pairs:
        sends: dict[Lane, list[Call]] = defaultdict(list)
        receives: dict[Lane, list[Call]] = defaultdict(list)
        for rank, timeline in facts.timelines.items():
            if timeline.pairwise is None:
                continue
            for row in timeline.log.calls[timeline.pairwise]:
                call = timeline.log.call(row)
                if facts.is_renumbered(call):
                    continue
                if call.op is Op.SEND:
                    sends[call.group, rank, call.root].append(call)
                else:
                    receives[call.group, call.root, rank].append(call)
        return cls(facts, dict(sends), dict(receives))

    def awaits(self, call: Call) -> tuple[int, ...]:
        """The ranks of which one (for a receive from anybody) or the one (else) has to send before the receive can return.

        () when what it waits for may be under way already, or cannot be told any more.
        """
        members = self._members(call)
        if call.op is Op.RECV_ANY:
            sent = sum(self._count(self.sends.get((call.group, m, call.rank), []), call.tag) for m in members)
            taken = [
                c
                for lane, calls in self.receives.items()
                if lane[0] == call.group and lane[2] == call.rank
                for c in calls
            ]
            complete = not self._forgotten and not set(members) - self.facts.timelines.keys()
            return (
                tuple(m for m in members if m != call.rank) if complete and sent < self._count(taken, call.tag) else ()
            )
        if call.root not in self.facts.timelines:
            return ()
        sent_to_me = self.sends.get((call.group, call.root, call.rank), [])
        mine = self.receives[call.group, call.root, call.rank]
        group = self.facts.group_of(call)
        tagless = group is not None and "nccl" in group.backend  # NCCL pairs in order, whatever the tags
        if tagless or len({c.tag for c in (*sent_to_me, *mine)}) <= 1:  # numbers count on where rows are forgotten
            return (call.root,) if max((c.number for c in sent_to_me), default=0) < call.number else ()
        if self._forgotten:
            return ()
        return (call.root,) if self._count(sent_to_me, call.tag) < self._count(mine, call.tag) else ()

    def awaits_receive(self, call: Call) -> tuple[int, ...]:
        """The receiver of a send, when it has not posted the receive that takes it; () when it may have."""
        if call.root not in self.facts.timelines:
            return ()
        mine = self.sends[call.group, call.rank, call.root]
        taken = self.receives.get((call.group, call.rank, call.root), [])
        if (call.group, ANYBODY, call.root) in self.receives:
            return () if self._may_be_taken(call) else (call.root,)
        if len({c.tag for c in (*taken, *mine)}) <= 1:
            return (call.root,) if max((c.number for c in taken), default=0) < call.number else ()
        if self._forgotten:
            return ()
        return (call.root,) if self._count(taken, call.tag) < self._count(mine, call.tag, call.seq) else ()

    def _may_be_taken(self, call: Call) -> bool:
        """Whether a rank that receives from anybody has posted a receive which no send that came back has taken."""
        key = call.group, call.root
        if key not in self._spare:
            self._spare[key] = self._has_spare(call)
        return self._spare[key]

    def _has_spare(self, call: Call) -> bool:
        lanes = [one for one in {*self.sends, *self.receives} if one[0] == call.group and one[2] == call.root]
        sent = [one for lane in lanes for one in self.sends.get(lane, [])]
        posted = [one for lane in lanes for one in self.receives.get(lane, [])]
        if self._forgotten or len({one.tag for one in (*sent, *posted)}) > 1:
            return True
        came_back = sum(bool(one.returned_ns) and not one.is_async for one in sent)
        return len(posted) > came_back

    def unreceived_of(self, call: Call) -> list[Call]:
        """Sends of the awaited rank in the same group that nobody has received: the one meant may be among them."""
        found = []
        for (group, sender, receiver), sent in self.sends.items():
            if group == call.group and sender == call.root:
                received = self.receives.get((group, sender, receiver), [])
                for one in sent:
                    if self._count(sent, one.tag, one.seq) > self._count(received, one.tag):
                        found.append(one)
        return found

    def mistagged(self, receive: Call) -> Call | None:
        """The send of the awaited rank that a receive would take if it bore its tag; None where there is none."""
        sent = self.sends.get((receive.group, receive.root, receive.rank), [])
        if receive.op is not Op.RECV or len(sent) < receive.number or any(one.tag == receive.tag for one in sent):
            return None
        return next((one for one in self.unreceived_of(receive) if one.root == receive.rank), None)

    def unsent_to(self, call: Call) -> list[Call]:
        """Receives of the awaited rank that wait for somebody else."""
        return [c for (group, _, receiver), got in self.receives.items() if receiver == call.root for c in got[-1:]]

    def misfits(self) -> Iterator[tuple[Call, Call]]:
        """Pairs of a send and its receive that differ in size or dtype."""
        if self._forgotten:
            return
        for lane, sent in self.sends.items():
            received = self.receives.get(lane, [])
            if (lane[0], ANYBODY, lane[2]) in self.receives:
                continue
            for tag in {call.tag for call in sent}:
                pairs = zip([c for c in sent if c.tag == tag], [c for c in received if c.tag == tag], strict=False)
                for one, other in pairs:
                    if _misfit(one, other) and not _is_announced(one, other, sent):
                        yield one, other
                        break

    def lost(self) -> Iterator[tuple[Call, int]]:
        """The first send of each receiver and tag that got no receive, and how many of them there are. A single one behind others
        that arrived is a loop's last."""
        received = {(lane[0], lane[2]) for lane in self.receives if lane[1] < 0}
        for lane, sent in () if self._forgotten else self.sends.items():
            group = self.facts.group_of(sent[0])
            if (lane[0], lane[2]) in received or lane[2] not in self.facts.timelines or group is None:
                continue
            taken = self.receives.get(lane, [])
            tags = [None] if "nccl" in group.backend else sorted({call.tag for call in sent})
            for tag in tags:
                mine = [call for call in sent if tag in (None, call.tag)]
                arrived = sum(tag in (None, call.tag) for call in taken)
                left = len(mine) - arrived
                if left > 1 or (left == 1 and not arrived):
                    yield mine[arrived], left

    @cached_property
    def _forgotten(self) -> bool:
        """Whether some rank's ring has come round: then calls of one tag cannot be counted any more."""
        return any(log.lost.get("calls", 0) for log in self.facts.recording.ranks.values())

    @staticmethod
    def _count(calls: list[Call], tag: int, up_to: int = 1 << 62) -> int:
        return sum(call.tag == tag and call.seq <= up_to for call in calls)

    def _members(self, call: Call) -> tuple[int, ...]:
        group = self.facts.group_of(call)
        return group.members if group is not None else ()


ANNOUNCED_BY = 16  # integers at most: the sizes, or the shape, of what follows


def _misfit(one: Call, other: Call) -> bool:
    return one.nbytes != other.nbytes or not reads_the_same(one, other)


def _is_announced(one: Call, other: Call, sent: list[Call]) -> bool:
    """Whether a message comes into a buffer that holds larger ones too, and its size came before it: a few integers that the
    sender sent to the same receiver."""
    before = [call for call in sent if call.seq < one.seq][-1:]
    fits = one.nbytes < other.nbytes and one.dtype == other.dtype
    return fits and any("int" in call.dtype and elements(call.shape) <= ANNOUNCED_BY for call in before)
