"""Ranks that wait for each other in different calls, seen in their stacks alone: nobody recorded how they got there.

One of them skipped, added or swapped a collective; which one, only a recording can prove. Which illness it is, is for the checks
to say.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Self

from distdoctor.diagnosis.check import NotApplicable
from distdoctor.diagnosis.derived import derived
from distdoctor.diagnosis.finding import LIKELY, POSSIBLE, Finding, Prescription
from distdoctor.diagnosis.hang.device_progress import DeviceProgress
from distdoctor.diagnosis.hang.live.rank_activity import Activity, RankActivity
from distdoctor.diagnosis.hang.live.sides import Sides, sides_of
from distdoctor.diagnosis.hang.live.stack_waits import (
    IN_PAIRS,
    StackWait,
    Variant,
    line_of,
    ring_of,
    stack_waits,
    variants_of,
)
from distdoctor.diagnosis.hang.live.stall import Stall
from distdoctor.diagnosis.hang.verdict import Verdict
from distdoctor.diagnosis.source.loop_exits import left_by
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Recording

IN_CALLS = (Activity.COLLECTIVE, Activity.BACKWARD, Activity.HANDLE, Activity.NEW_GROUP)


@dataclass(frozen=True)
class RanksApart:
    """The fact that ranks wait for each other in different calls, seen in their stacks alone."""

    streams: ClassVar[frozenset[str]] = frozenset()
    stall: Stall

    @classmethod
    def of(cls, recording: Recording) -> Self:
        """NotApplicable: nobody has looked at the processes, the job is over, or what was recorded says more."""
        stall = Stall.of(recording)
        if recording.ranks and "collectives" in recording.streams and not _leave_it_open(recording, stall):
            raise NotApplicable("what was recorded says more")
        if not recording.job.running and not stall.stacks.copies:
            raise NotApplicable("the job is no longer running")
        return cls(stall)

    @cached_property
    def _waiting(self) -> Variant:
        """Who waits in a call; nobody where the network is dead, because who is ahead has what the other waits for."""
        return [] if self.stall.cut else list(self.stall.of_kind(*IN_CALLS))

    @cached_property
    def gone(self) -> GoneRanks | None:
        """The ranks whose process is gone while others wait."""
        lost = [s for s in self.stall.of_kind(Activity.GONE) if s.rank in self.stall.stacks.absent]
        if not self._waiting or not lost or any(True for _ in self.stall.of_kind(Activity.INIT)):
            return None
        return GoneRanks(self.stall, tuple(lost))

    @cached_property
    def _is_deadlocked(self) -> bool:
        everybody = len(self._waiting) == len(self.stall.standings) > 1
        if self.stall.stacks.copies and any(process.moved for _, process in self.stall.stacks.processes()):
            return False
        return self.gone is None and everybody and self.stall.exceeds_patience(self.stall.waited_seconds)

    @cached_property
    def ring(self) -> tuple[StackWait, ...]:
        """Ranks each of which sends to, or receives from, the next one, which is in another send or receive."""
        if not self._is_deadlocked:
            return ()
        return ring_of([one for one in stack_waits(variants_of(self._waiting)) if one.op in IN_PAIRS])

    @cached_property
    def sides(self) -> Sides | None:
        """The ranks by what they wait in, where they wait in different calls and in no such ring."""
        if not self._is_deadlocked or self.ring:
            return None
        variants = variants_of(self._waiting)
        return sides_of(self.stall, variants) if len(variants) > 1 else None


def _leave_it_open(recording: Recording, stall: Stall) -> bool:
    """Whether dumps beside copied stacks tell no more than that ranks have not come: their call may not be recorded."""
    progress = DeviceProgress.in_dumps(recording) if stall.stacks.copies else None
    if progress is None or derived(Verdict, recording).incidents:
        return False
    return not (progress.memberships or progress.stopped or progress.rings or progress.jams or progress.moved_on)


@dataclass(frozen=True)
class GoneRanks:
    """Ranks whose process is gone while others wait."""

    stall: Stall
    lost: tuple[RankActivity, ...]

    @property
    def ended_in_order(self) -> bool:
        """Whether the first of them is known to have ended with exit code 0."""
        end = self.stall.recording.job.ends.get(self.lost[0].rank)
        return end is not None and end.exit_code == 0

    def finding(self) -> Finding:
        stall, first, ranks = self.stall, self.stall.waiting[0], tuple(s.rank for s in self.lost)
        why = "nothing shows how it ended"
        if self.ended_in_order:
            why = "the launcher is alive and ends all ranks as soon as one fails, so this one exited normally, with exit code 0"
        in_groups = all(s.names_a_group for s in stall.waiting)
        if in_groups:
            why += "; the stacks do not show whether it is a member of the group that was passed to the call"
        left = left_by(stall.recording.sources, first.site)
        if left:
            why += f"; {left.effect}"
        return Finding(
            title=f"{'has' if len(ranks) == 1 else 'have'} no running process, while {stall.who_waits}",
            ranks=ranks,
            confidence=POSSIBLE if in_groups else LIKELY,
            place=first.site,
            places=stall.places(*self.lost),
            evidence={"waiting_ranks": [s.rank for s in stall.waiting]},
            why=why,
            prescriptions=(
                Prescription(
                    "stay-until-the-end",
                    change=left.cure
                    if left
                    else f"keep {named(ranks)} running through {first.call} ({line_of(first)}), or stop all ranks together",
                ),
            ),
        )
