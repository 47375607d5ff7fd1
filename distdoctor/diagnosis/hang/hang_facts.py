"""What is known about the communication before anybody is blamed: computed once, and all that incidents are found in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from distdoctor.diagnosis.derived import derived
from distdoctor.diagnosis.facts.collectives import Collectives, GroupCalls
from distdoctor.diagnosis.facts.timeline import Timeline
from distdoctor.diagnosis.hang.alignment import REDUCTION, CallDivergence, divergences
from distdoctor.diagnosis.hang.device_progress import DeviceProgress
from distdoctor.diagnosis.hang.ending import Ending, endings
from distdoctor.diagnosis.hang.point_to_point import Pairs
from distdoctor.diagnosis.hang.uneven import Uneven, uneven_passes
from distdoctor.diagnosis.hang.wait_for import Deadlock, Wait, deadlock, gone_for_good, waits
from distdoctor.recording.recording import Recording


@dataclass(frozen=True)
class HangFacts:
    """Who called what, who waits for whom, who ended how, and where groups part."""

    facts: Collectives
    pairs: Pairs
    endings: dict[int, Ending]
    divergences: tuple[CallDivergence, ...]
    waits: tuple[Wait, ...]
    deadlock: Deadlock
    uneven: tuple[Uneven, ...]
    progress: DeviceProgress | None = None  # of dumps

    @classmethod
    def of(cls, recording: Recording) -> Self:
        facts = derived(Collectives, recording)
        pairs = Pairs.of(facts)
        ended = endings(facts)
        live = recording.job.running
        parted = tuple(d for group in facts.groups for d in divergences(group, live=live))
        found = waits(facts, pairs, [d for d in parted if d.differs != REDUCTION], ended)
        dead = deadlock(facts, found, gone_for_good(ended))
        progress = DeviceProgress.in_dumps(recording)
        return cls(facts, pairs, ended, parted, tuple(found), dead, tuple(uneven_passes(recording)), progress)

    @property
    def recording(self) -> Recording:
        return self.facts.recording

    @property
    def sources(self) -> Mapping[str, str]:
        """Lines of the user's files, path -> text."""
        return self.recording.sources

    def timeline(self, rank: int) -> Timeline:
        return self.facts.timelines[rank]

    def waiting_in(self, group: GroupCalls) -> tuple[Wait, ...]:
        """The waits in collectives of a group."""
        return tuple(wait for wait in self.waits if wait.group is group)

    def waiting_for(self, ranks: set[int]) -> tuple[Wait, ...]:
        """The waits that one of these ranks keeps from ending."""
        return tuple(wait for wait in self.waits if set(wait.on) & ranks)
