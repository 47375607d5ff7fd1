"""A question to all hosts of a large job at once, through its own store: whoever is there answers with a word.

Each host waits for the question with one that the store answers only when somebody asks: until then nothing is sent. So a loss
need not wait for the rare words of many hosts, and who asks are hosts whose ranks have come to rest.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

ANSWER_SECONDS = 2.5  # for a word that is late on a busy machine
LOOK_SECONDS = 0.4  # between two looks for host 0's judgement: at most 13 of some 250 bytes each
REST_SECONDS = 1.5  # without a move of our ranks, at least, before all are called
LONGER_THAN_EVER = 1.5  # times the longest rest that ended by itself
_A_LONG_TIME = timedelta(days=30)


class RollCall:
    """The roll calls of one start of the ranks. `number` have been heard of, the newest `since` (monotonic seconds); of `judged`
    of them host 0 knows who kept silent. `woken` is called, in a thread of its own, when either has grown."""

    def __init__(self, client: Callable[[], Any], prefix: str, woken: Callable[[], None]) -> None:
        self._client, self._prefix, self._woken = client, prefix, woken
        self.number = self.judged = 0
        self.since = -math.inf
        self.is_over = self._is_listening = False
        threading.Thread(target=self._hear, name="distdoctor-roll-call", daemon=True).start()

    @property
    def heard(self) -> int:
        """How many roll calls have been heard of, -1 while none could be."""
        return self.number if self._is_listening else -1

    def ask(self, store: Any) -> None:
        """Call all hosts. Comes back at once; the store may be gone."""
        if not self.is_pending:
            threading.Thread(target=self._ask, args=(store, self.number), name="distdoctor-asks", daemon=True).start()

    @property
    def is_pending(self) -> bool:
        """Whether the newest roll call is not judged yet, and may still be."""
        return self.number > self.judged and time.monotonic() - self.since < 2 * ANSWER_SECONDS

    def judge(self, store: Any) -> None:
        """Host 0 has written down who kept silent: the others may read it."""
        store.set(self._key(f"judged/{self.number - 1}"), b"1")
        self.judged = self.number

    def end(self, store: Any) -> None:
        """The host of the store goes: nobody is to wait for it, nor to miss it."""
        self.is_over = True
        store.set(self._key("over"), b"1")
        store.set(self._key(f"roll/{self.number}"), b"1")

    def _key(self, word: str) -> str:
        return f"{self._prefix}/{word}"

    def _ask(self, store: Any, number: int) -> None:
        with contextlib.suppress(Exception):
            store.set(self._key(f"roll/{number}"), b"1")
        if self.number == number:
            self.since = time.monotonic()

    def _hear(self) -> None:
        """Wait for one roll call after the other; ends with the store."""
        with contextlib.suppress(Exception):
            store = self._client()
            self._is_listening = True
            self._woken()
            while self._next(store):
                self._woken()
                self._await_judgement(store)
                self.judged = max(self.judged, self.number)
                self._woken()
        self._is_listening = False
        self._woken()

    def _await_judgement(self, store: Any) -> None:
        """Host 0 has judged the newest roll call, or is late: it may be gone while the store is elsewhere. The store is asked now
        and then, for torch writes a warning to the terminal where a timed wait for a key ends in vain."""
        judged, late = [self._key(f"judged/{self.number - 1}")], time.monotonic() + 2 * ANSWER_SECONDS
        while time.monotonic() < late and not self.is_over and not store.check(judged):
            time.sleep(LOOK_SECONDS)

    def _next(self, store: Any) -> bool:
        """The next roll call has come; False where there will be none."""
        store.wait([self._key(f"roll/{self.number}")], _A_LONG_TIME)
        self.is_over = self.is_over or store.check([self._key("over")])
        if self.is_over:
            return False
        self.number, self.since = self.number + 1, time.monotonic()
        return True


class Rest:
    """For how long our ranks have been at rest, and when that is unusual enough to call all hosts."""

    def __init__(self) -> None:
        self._longest = self._now = 0.0
        self._limit = REST_SECONDS

    def lasts(self, seconds: float) -> bool:
        """No rank has moved for so long. Whether to ask who is there: at first, then ever more rarely."""
        self._now = seconds
        if seconds < self._limit:
            return False
        self._limit = 2 * seconds
        return True

    def ends(self) -> None:
        """A rank has moved: a rest of this kind is usual here."""
        self._longest, self._now = max(self._longest, self._now), 0.0
        self._limit = max(REST_SECONDS, LONGER_THAN_EVER * self._longest)
