"""Of many hosts one judges: host 0 takes the bundles of all, and puts its verdict into the store for the others.

While it is at it, it counts up a number there, once a second. A host whose ranks rest or have ended waits as long as that number
grows, and not beyond `longest_wait`; where it stands still, host 0 is gone or its ranks move: the host has its own part alone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from distdoctor.diagnosis.diagnosis import Diagnosis
from distdoctor.diagnosis.sent_verdict import pack_verdict, unpack_verdict
from distdoctor.errors import UnreadableRecording
from distdoctor.launch.exchange import ANSWER_SECONDS, FINAL, MOVING, STANDING, Exchange
from distdoctor.launch.rendezvous import Rendezvous

BEAT_SECONDS = 1.0
SILENT_SECONDS = 3.0  # as long as other hosts are awaited where all judge
SECONDS_A_HOST = (
    0.25  # 0.18 to take the bundle of one of 1,280 and 0.02 to judge it, at a load of 30 (exchange_scale.py)
)
NAME, BEATS = "verdict", "judging"


def longest_wait(hosts: int) -> float:
    """Seconds that a host waits for the verdict of a host 0 that says that it is at it."""
    return SILENT_SECONDS + SECONDS_A_HOST * hosts


class VerdictOfHost0:
    """As host 0 gives it and the others take it. Keys are bounded: two slots, and one number."""

    def __init__(self, rendezvous: Rendezvous, exchange: Exchange) -> None:
        self._rendezvous, self._exchange = rendezvous, exchange
        self._attempt = -1  # that all below is about
        self._sent: tuple[int, bytes, str] = (0, b"", MOVING)
        self._taken: tuple[str, Diagnosis | None] = ("", None)
        self._beats, self._heard = -1, 0.0  # of host 0, and when they last grew, monotonic seconds
        self._over: threading.Event | None = None  # ends our own beats

    @property
    def is_awaited(self) -> bool:
        """Whether another host judges for us."""
        return self._exchange.one_judges and self._rendezvous.host_number != 0

    @property
    def is_ours(self) -> bool:
        """Whether we judge for all."""
        return self._exchange.one_judges and self._rendezvous.host_number == 0

    def begin(self) -> None:
        """Say from now on that we are at it."""
        self._join_attempt()
        if self._over is None:
            self._over = threading.Event()
            beats = threading.Thread(target=self._beat, args=(self._over,), name="distdoctor-judging", daemon=True)
            beats.start()

    def give(self, diagnosis: Diagnosis, *, final: bool) -> None:
        """Put the verdict where the others find it. The last one ends our beats."""
        self._join_attempt()
        number, sent, how = self._sent
        wanted, data = FINAL if final else STANDING, pack_verdict(diagnosis)
        if (data, wanted) != (sent, how):
            self._put((number + 1, data, wanted))
        if final:
            self.end()

    def take_back(self) -> None:
        """Ranks move again. Whose verdict it is takes it back, the others wait for a new one."""
        self._beats = -1
        if self.is_ours:
            self.end()
            if self._attempt == self._rendezvous.attempt and self._sent[2] == STANDING:
                self._put((self._sent[0] + 1, b"", MOVING))

    def end(self) -> None:
        """We are no more at it."""
        if self._over is not None:
            self._over.set()
            self._over = None

    def now(self) -> Diagnosis | None:
        """The verdict of this moment, None where there is none yet."""
        state = self._look()
        if state.endswith(MOVING):
            self._heard = 0.0  # it has said so: there is nothing to wait for
        return self._read(state) if state.endswith((STANDING, FINAL)) else None

    def is_to_come(self) -> bool:
        """Whether host 0 has been heard lately; to be asked after a look."""
        return time.monotonic() - self._heard < SILENT_SECONDS + 2 * self._exchange.pause

    def last(self, is_lost: Callable[[], bool] = lambda: False) -> Diagnosis | None:
        """The verdict at the end of the job, awaited; None where it does not come. `is_lost()`: whether host 0 gives no sign of
        life, which counts as long as it has not said that it is at it."""
        self._beats = -1
        late = time.monotonic() + longest_wait(self._rendezvous.hosts)
        state, first = self._look(), self._beats
        while not state.endswith(FINAL):
            is_gone = not self.is_to_come() or (self._beats == first and is_lost())
            if is_gone or time.monotonic() >= late:
                return None
            time.sleep(self._exchange.pause)
            state = self._look()
        return self._read(state)

    def _look(self) -> str:
        """What host 0 says of its verdict, "" where it says nothing."""
        self._join_attempt()
        exchange = self._exchange
        found = exchange.ask(lambda store: (store.add(exchange.key(BEATS), 0), exchange.state(store, NAME)))
        if found is None:  # the store, or the way to it, is gone
            self._heard = 0.0
            return ""
        beats, state = found
        if beats != self._beats:
            self._beats, self._heard = beats, time.monotonic()
        return state

    def _read(self, state: str) -> Diagnosis | None:
        if self._taken[0] != state:
            try:
                self._taken = (state, unpack_verdict(self._exchange.data(NAME, state)))
            except UnreadableRecording:
                return None  # overwritten while it was read, or damaged
        return self._taken[1]

    def _put(self, sent: tuple[int, bytes, str]) -> None:
        self._sent = sent
        self._exchange.ask(lambda store: self._exchange.put(store, NAME, sent))

    def _join_attempt(self) -> None:
        self._exchange.join_attempt()
        if self._attempt != self._rendezvous.attempt:
            self.end()
            self._attempt = self._rendezvous.attempt
            self._sent, self._taken = (0, b"", MOVING), ("", None)
            self._beats, self._heard = -1, 0.0

    def _beat(self, over: threading.Event) -> None:
        key = self._exchange.key(BEATS)
        try:
            client: Any = self._rendezvous.store.clone()
            client.set_timeout(timedelta(seconds=ANSWER_SECONDS))
            while True:
                client.add(key, 1)
                if over.wait(BEAT_SECONDS):
                    return
        except Exception:
            return  # the store is gone: the others see that as well
