"""A host of which the launcher on another one heard nothing any more while the job ran."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LostHost:
    """Its launcher, the machine or the way to it is gone: from outside that looks the same.

    `ranks` lived there. `since_ns` is its last sign of life and `noticed_ns` when its silence was last seen, monotonic on the
    machine `seen_from` (`ProcessKey.machine`) of the host `seen_by`. `keeps_store`: the job's store lives there, so that nothing
    can be said of further hosts. `launcher_ended`: the host answers, and nobody listens where its launcher kept the store.
    """

    host: str
    ranks: tuple[int, ...] = ()
    seen_by: str = ""
    seen_from: str = ""
    since_ns: int = 0
    noticed_ns: int = 0
    keeps_store: bool = False
    launcher_ended: bool = False

    @property
    def seconds(self) -> float:
        """For how long nothing was heard."""
        return max(0, self.noticed_ns - self.since_ns) / 1e9
