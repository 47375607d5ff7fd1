"""Ending a job that does not end by itself: one that hangs, one whose agent does not pass a signal on, ranks that outlive it.

Whoever has to be asked twice is asked with SIGTERM first, and ended with SIGKILL after a moment.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Set
from dataclasses import replace

from distdoctor.launch.ends import Ends
from distdoctor.launch.exchange import Exchange
from distdoctor.launch.job_state import JobState
from distdoctor.launch.observed_agent import AgentEnd
from distdoctor.launch.processes import is_alive, send

GRACE_SECONDS = 5.0  # between SIGTERM and SIGKILL for ranks that hang; a rank that waits in C++ ends at once by either


class ForcedEnd:
    """Ends the job from threads of its own: the main one stands in torch's agent, and the watcher goes on looking.

    `is_over()`: the agent has come back, or somebody reports already. `leave(end)` reports and ends this process, where the ranks
    have gone and the agent stands in a call to a host that does not answer; None: it is waited for.
    """

    def __init__(
        self,
        ends: Ends,
        state: JobState,
        exchange: Exchange,
        is_over: Callable[[], bool],
        leave: Callable[[AgentEnd], None] | None,
    ) -> None:
        self._ends, self._state, self._exchange = ends, state, exchange
        self._is_over, self._leave = is_over, leave

    def start(self) -> None:
        """End the job because it hangs, or because of what was found."""
        self._state.aborting = True
        threading.Thread(target=self._abort, name="distdoctor-abort", daemon=True).start()

    def see_through(self, number: int) -> None:
        """A signal has come from outside: what the agent does not do within the grace that ranks get is done by us."""
        threading.Thread(target=self._see_through, args=(number,), name="distdoctor-signal", daemon=True).start()

    def _abort(self) -> None:
        """End the job as Ctrl-C would, then whoever does not listen. Torch's agent would restart ranks that only died."""
        self._exchange.say_ended()
        self._ends.closing()
        if is_alive(self._state.launcher_pid, self._state.launcher_began):
            send(self._state.launcher_pid, signal.SIGTERM)
        elif not self._state.launcher_pid and callable(
            signal.getsignal(signal.SIGTERM)
        ):  # else --signals-to-handle left it out
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            self._ends.signal(signal.SIGTERM)
        deadline = time.monotonic() + GRACE_SECONDS
        while self._ends.alive() and time.monotonic() < deadline:
            time.sleep(0.05)
        self._ends.signal(signal.SIGKILL)
        self._leave_unless_over(AgentEnd(1))

    def _see_through(self, number: int) -> None:
        if not self._over_within(2 * GRACE_SECONDS) and self._ends.alive():
            self._ends.closing()
            self._ends.signal(number)
            self._over_within(GRACE_SECONDS)
            self._ends.signal(signal.SIGKILL)
        self._leave_unless_over(AgentEnd(1, signal=number))

    def _leave_unless_over(self, end: AgentEnd) -> None:
        if self._leave is not None and not self._over_within(GRACE_SECONDS):
            self._leave(replace(end, trouble="torch's agent did not come back from its rendezvous"))

    def _over_within(self, seconds: float) -> bool:
        """Whether the agent comes back in time."""
        deadline = time.monotonic() + seconds
        while not self._is_over() and time.monotonic() < deadline:
            time.sleep(0.05)
        return self._is_over()


def end_leftovers(ends: Ends, spared: Set[int]) -> None:
    """End the ranks that outlive their launcher, all but `spared`: they hold ports and devices and belong to nobody."""

    def leftovers() -> set[int]:
        return set(ends.alive()) - spared

    if not leftovers():
        return
    ends.closing()
    for number in (signal.SIGTERM, signal.SIGKILL):
        ends.signal(number, leftovers())
        deadline = time.monotonic() + GRACE_SECONDS
        while leftovers() and time.monotonic() < deadline:
            time.sleep(0.02)
