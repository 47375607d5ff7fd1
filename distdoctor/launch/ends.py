"""How each rank of this host ended, in the order in which it happened, seen from outside through pidfds."""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Mapping, Set
from dataclasses import dataclass, replace

from distdoctor.launch.kernel_kills import KernelKills
from distdoctor.launch.processes import exit_code_and_signal, is_alive, send, status
from distdoctor.recording.recording import RankEnd

# What launchers send to the ranks that are left over when one has failed, or when the user pressed Ctrl-C.
LAUNCHERS_SIGNALS = frozenset({signal.SIGTERM, signal.SIGKILL, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
WITHIN_NS = 1_000_000_000
_UNSEEN_ENDS_MS = 50  # how often to look where the kernel offers no pidfd
_COUNTERS_MS = 1000  # how often to read what the kernel counts: 0.1 ms for each cgroup that has ranks


@dataclass
class _Watched:
    rank: int
    pid: int
    started: int
    fd: int = -1
    kills: KernelKills | None = None


class Ends:
    """Watches the processes of ranks; `ends` says how those that are over ended.

    Torch's agent ends all ranks 0.1 s after the first failure, and reports whichever it meets first in its own loop as the
    root cause. A pidfd becomes readable at the very moment, and the zombie's wait status is read before its parent collects it.
    """

    def __init__(self) -> None:
        self._watched: dict[int, _Watched] = {}
        self._ends: dict[int, RankEnd] = {}
        self._survivors: frozenset[int] = frozenset()
        self._kernel: dict[str, KernelKills] = {}
        self._lock = threading.RLock()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._over = False
        self._thread = threading.Thread(target=self._run, name="distdoctor-ends", daemon=True)
        self._thread.start()

    def watch(self, ranks: Mapping[int, int], *, started: Mapping[int, int] | None = None, anew: bool = False) -> None:
        """Watch these ranks (rank -> pid) from now on; a rank that is watched again was restarted. `anew`: all ranks were, and
        may have other numbers than before. `started`: rank -> when its process was, in clock ticks since boot; needed of those
        that are not our children, whose pid may be somebody else's by now."""
        with self._lock:
            if anew:
                for rank in list(self._watched):
                    self._forget(rank)
            for rank, pid in ranks.items():
                self._forget(rank)
                self._watched[rank] = self._watched_one(rank, pid, (started or {}).get(rank, 0))
            self._survivors = frozenset()
        os.eventfd_write(self._wake, 1)

    def _watched_one(self, rank: int, pid: int, started: int) -> _Watched:
        try:
            fd = os.pidfd_open(pid)
        except OSError:
            fd = -1  # gone already, or a kernel without pidfds: looked at every 50 ms
        now = status(pid)  # after the pidfd: whoever has the pid now had it then, if it is the one that was meant
        if now is None or started not in (0, now.started):
            return _Watched(rank, pid, started, fd)
        return _Watched(rank, pid, now.started, fd, self._counters_of(pid))

    def closing(self) -> None:
        """The launcher is about to end whoever still runs: what happens to those from now on is not their own doing.

        Said again when some of them have gone, it holds for these as well: their parent may be the only one that knows how.
        """
        with self._lock:
            self._collect()
            self._survivors |= frozenset(self.alive())

    def seen(self) -> dict[int, RankEnd]:
        """How the ranks that have ended so far ended."""
        with self._lock:
            self._collect()
            return dict(self._ends)

    def watched(self) -> dict[int, int]:
        """rank -> pid of all that are or were watched."""
        with self._lock:
            return {rank: watched.pid for rank, watched in self._watched.items()}

    def alive(self) -> list[int]:
        """The ranks that still run."""
        with self._lock:
            return [rank for rank in self._watched if rank not in self._ends]

    def memory_left(self) -> float:
        """Share of memory that is left to the ranks that run, where it is least; 1.0 where nothing is known."""
        with self._lock:
            kills = [self._watched[rank].kills for rank in self.alive()]
        distinct = {one.counter: one for one in kills if one is not None}
        return min((one.left() for one in distinct.values()), default=1.0)

    def signal(self, number: int, only: Set[int] | None = None) -> None:
        """Send a signal to every rank (to `only` these) that still runs, and to no process that took over its pid."""
        with self._lock:
            for rank in self.alive() if only is None else sorted(only & set(self.alive())):
                watched = self._watched[rank]
                if is_alive(watched.pid, watched.started):
                    send(watched.pid, number)

    def stop(self) -> dict[int, RankEnd]:
        """End the watch; how the ranks ended."""
        ends = self.seen()
        self._over = True
        os.eventfd_write(self._wake, 1)
        self._thread.join(timeout=5)
        with self._lock:
            for rank in list(self._watched):
                self._forget(rank)
        return ends

    def _run(self) -> None:
        while not self._over:
            poll = select.poll()
            poll.register(self._wake, select.POLLIN)
            with self._lock:
                waiting = [w for w in self._watched.values() if w.rank not in self._ends]
                for watched in waiting:
                    if watched.fd >= 0:
                        poll.register(watched.fd, select.POLLIN)
            poll.poll(_UNSEEN_ENDS_MS if any(w.fd < 0 for w in waiting) else _COUNTERS_MS if waiting else None)
            with self._lock:
                self._collect()
                self._read_counters()
            try:
                os.eventfd_read(self._wake)
            except BlockingIOError:
                pass

    def _collect(self) -> None:
        """Note every rank that has ended since the last look."""
        now = time.monotonic_ns()
        for rank, watched in self._watched.items():
            if rank in self._ends:
                continue
            found = status(watched.pid)
            if found is None or found.started != watched.started:
                self._ends[rank] = RankEnd(None, at_ns=now)  # collected by its parent before we could look
            elif found.ended:
                end = self._judged(rank, *exit_code_and_signal(found.wait_status), now)
                self._ends[rank] = _with_counters(end, watched.kills)

    def _counters_of(self, pid: int) -> KernelKills:
        """Those of its cgroup, which ranks share."""
        found = KernelKills.of(pid)
        return self._kernel.setdefault(found.counter, found)

    def _read_counters(self) -> None:
        """What the kernel has counted by now, for the ranks that still run."""
        now = time.monotonic()
        for rank, watched in self._watched.items():
            if watched.kills is not None and rank not in self._ends:
                readings = watched.kills.readings
                if now - readings[-1].at >= 0.9 * _COUNTERS_MS / 1000:
                    watched.kills.look(now)

    def _judged(self, rank: int, exit_code: int | None, number: int, at_ns: int) -> RankEnd:
        ended_by_launcher = rank in self._survivors and (
            number in LAUNCHERS_SIGNALS or exit_code in (0, 128 + signal.SIGTERM, 128 + signal.SIGINT)
        )
        return RankEnd(exit_code, number, ended_by_launcher, at_ns)

    def correct(self, rank: int, *, exit_code: int | None, signal: int) -> None:
        """Fill in how a rank ended that its parent collected too early for us, from what the parent knows."""
        with self._lock:
            end = self._ends.get(rank)
            if end is not None and end.exit_code is None and not end.signal:
                watched = self._watched.get(rank)
                judged = self._judged(rank, exit_code, signal, end.at_ns)
                self._ends[rank] = _with_counters(judged, watched.kills if watched is not None else None)

    def _forget(self, rank: int) -> None:
        watched = self._watched.pop(rank, None)
        if watched is not None and watched.fd >= 0:
            os.close(watched.fd)
        self._ends.pop(rank, None)


def asked_from_outside(ends: Mapping[int, RankEnd]) -> bool:
    """Whether several ranks got SIGTERM within a second and none had failed before: no rank's own fault looks like that, a
    scheduler's time limit does."""
    failed = sorted(
        (end.at_ns, end.signal) for end in ends.values() if (end.signal or end.exit_code) and not end.ended_by_launcher
    )
    asked = [at for at, number in failed if number == signal.SIGTERM]
    return len(asked) > 1 and failed[0][1] == signal.SIGTERM and asked[1] - asked[0] < WITHIN_NS


def ended_from_outside(ends: Mapping[int, RankEnd], asked_ns: int = 0) -> dict[int, RankEnd]:
    """The ends, when somebody asked the whole job to end (a time limit, preemption, Ctrl-C): whoever was ended by a signal
    then, or left because of one, did so for no reason of its own; and so did who left afterwards, whatever its code: frameworks
    catch the interrupt and exit with one of their own. `asked_ns`: when we were asked, 0 where we were not; ranks that are asked
    themselves may be a moment faster, and leave in order."""
    asked = (128 + signal.SIGTERM, 128 + signal.SIGINT, 128 + signal.SIGHUP)

    def was_asked(end: RankEnd) -> bool:
        in_order = end.exit_code == 0 and asked_ns and end.at_ns >= asked_ns - WITHIN_NS
        after = end.exit_code and asked_ns and end.at_ns >= asked_ns
        return end.signal in LAUNCHERS_SIGNALS or end.exit_code in asked or bool(in_order or after)

    return {rank: replace(end, ended_by_launcher=True) if was_asked(end) else end for rank, end in ends.items()}


def _with_counters(end: RankEnd, kills: KernelKills | None) -> RankEnd:
    """The end of a rank that failed, with what the kernel says about memory."""
    if kills is None or not (end.signal or end.exit_code):
        return end
    kills.look()
    count, limit = kills.lately()
    return replace(end, kernel_kills=count, memory_limit=limit, kernel_counter=kills.counter)
