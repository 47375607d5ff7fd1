"""How far a job is: what the threads of its launcher share while it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from distdoctor.recording.lost_host import LostHost
from distdoctor.recording.recording import Attempt, RankEnd


@dataclass
class JobState:
    """One job, seen from its launcher on this host."""

    world_size: int = 0
    attempt: int = 0
    over: bool = False
    aborting: bool = False
    begun: bool = False  # torch's agent has started ranks: until then our folder holds those of earlier runs at most
    signal: int = 0  # from outside
    signal_ns: int = 0  # when it came, monotonic
    exit_codes: dict[int, Callable[[int], int | None]] = field(default_factory=dict)
    starts: dict[int, Attempt] = field(
        default_factory=dict
    )  # those before the current one, and this one once it is over
    launcher_pid: int = 0  # of another launcher than torch's agent
    launcher_began: int = 0  # clock ticks since boot
    lost: tuple[LostHost, ...] = ()  # the hosts that were silent when the job was over

    def keep_start(self, ends: Mapping[int, RankEnd]) -> None:
        """Note the current start of the ranks, as it is now."""
        ranks = tuple(sorted({*self.exit_codes, *ends}))
        self.starts[self.attempt] = Attempt(self.attempt, self.world_size, ranks, ends)
