"""The hosts of one job hand each other their bundles through the store of its own rendezvous: no folder shared, no port opened.

The store lives in the agent of one host and answers while ranks are stuck. Every question to it is asked on a connection of our
own and given up after a moment: that host may be gone.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeVar

from distdoctor.errors import UnreadableRecording
from distdoctor.launch.rendezvous import Rendezvous, at_most
from distdoctor.recording.bundle import pack, unpack
from distdoctor.recording.recording import Recording

CHUNK_BYTES = 1 << 20
ANSWER_SECONDS = 3.0  # a store on a living host answers within milliseconds
SLOTS = 2  # of chunks a host: who reads one meets no half of the next
PREFIX = "distdoctor"
STANDING, MOVING, FINAL = "standing", "moving", "final"  # what a host says of its ranks
Answer = TypeVar("Answer")


class Exchange:
    """The bundles of one start of a job's ranks, each under the number of its host. Keys are bounded: two slots a host."""

    def __init__(self, rendezvous: Rendezvous) -> None:
        self._rendezvous = rendezvous
        self._client: Any = None
        self._of_attempt = -1
        self._is_lost = False  # the store did not answer: it, or the way to it, is gone
        self._sent: tuple[int, bytes, str] = (0, b"", MOVING)
        self._got: dict[int, tuple[str, Recording]] = {}
        self.silent: list[int] = []  # hosts of which nothing has come, by their numbers in the rendezvous

    @property
    def is_open(self) -> bool:
        """Whether there are other hosts, and a store to reach them by."""
        return self._rendezvous.store is not None and self._rendezvous.hosts > 1

    def give(self, recording: Recording, *, final: bool) -> None:
        """Put our bundle where the others find it: while our ranks stand, and at the end. What is there already is not sent
        again."""
        job = replace(recording.job, read_at_ns=0, read_wall_ns=0)  # when nothing else is new, nothing is
        data = pack(replace(recording, job=job))
        self._join_attempt()
        number, sent, how = self._sent
        wanted = FINAL if final else STANDING
        if (data, wanted) != (sent, how):
            self._sent = (number + 1, data, wanted)
            self._ask(lambda store: self._put(store, number + 1, data, wanted))

    def take_back(self) -> None:
        """Our ranks move again: what we gave is out of date, and must not be held against them."""
        number, _, how = self._sent
        if how == STANDING and self._of_attempt == self._rendezvous.attempt:
            self._sent = (number + 1, b"", MOVING)
            self._ask(lambda store: self._put(store, number + 1, b"", MOVING))

    def take(self) -> list[Recording]:
        """The bundle of each other host whose ranks do not move either, or have ended."""
        self._join_attempt()
        self._look()
        return [recording for _, recording in self._got.values()]

    def take_last_words(self, until: float) -> list[Recording]:
        """The bundle of each other host at its end. `until`: monotonic seconds up to which they are awaited."""
        self._join_attempt()
        while True:
            self._look()
            found = {host: recording for host, (state, recording) in self._got.items() if state.endswith(FINAL)}
            self.silent = [host for host in self._others if host not in found]
            if not self.silent or self._is_lost or time.monotonic() >= until:
                return [*found.values()]
            time.sleep(0.1)

    @property
    def _others(self) -> list[int]:
        return [host for host in range(self._rendezvous.hosts) if host != self._rendezvous.host_number]

    def _look(self) -> None:
        states = self._ask(lambda store: {host: self._state(store, host) for host in self._others}) or {}
        for host, state in states.items():
            if not state or state.endswith(MOVING):
                self._got.pop(host, None)
            elif self._got.get(host, ("",))[0] != state:
                self._fetch(host, state)

    def part(self, until: float) -> None:
        """Stay until everybody has what he came for: the store may live in this process."""
        hosts = self._rendezvous.hosts
        self._ask(lambda store: store.add(self._key("gone"), 1))
        while time.monotonic() < until:
            gone = self._ask(lambda store: store.add(self._key("gone"), 0))
            if gone is None or gone >= hosts:
                return
            time.sleep(0.1)

    def say_ended(self) -> None:
        """We are about to end this start of the job: ranks of other hosts, which then fail, are not to be restarted."""
        if self.is_open:
            self._join_attempt()
            self._ask(lambda store: store.add(self._key("ended"), 1))

    @property
    def was_ended(self) -> bool:
        """Whether a launcher on another host has said that it ends this start of the job."""
        self._join_attempt()
        return self.is_open and bool(self._ask(lambda store: store.add(self._key("ended"), 0)))

    def connect(self) -> None:
        """Connect while the store is known to answer."""
        if self.is_open:
            self._join_attempt()
            self._ask(lambda store: True)

    def _join_attempt(self) -> None:
        if self._of_attempt != self._rendezvous.attempt:
            self._client, self._of_attempt, self._is_lost = None, self._rendezvous.attempt, False
            self._sent, self._got = (0, b"", MOVING), {}

    def _key(self, *words: object) -> str:
        return "/".join(map(str, (PREFIX, self._of_attempt, *words)))

    def _put(self, store: Any, number: int, data: bytes, how: str) -> bool:
        chunks = [data[at : at + CHUNK_BYTES] for at in range(0, len(data), CHUNK_BYTES)]
        here = self._rendezvous.host_number
        for at, chunk in enumerate(chunks):
            store.set(self._key(here, number % SLOTS, at), chunk)
        store.set(self._key(here), f"{number} {len(chunks)} {how}")
        return True

    def _state(self, store: Any, host: int) -> str:
        """`NUMBER CHUNKS standing|moving|final` of a host, "" while it has sent nothing."""
        key = self._key(host)
        return str(store.get(key).decode()) if store.check([key]) else ""

    def _fetch(self, host: int, state: str) -> None:
        number, chunks, _ = state.split()
        keys = [self._key(host, int(number) % SLOTS, at) for at in range(int(chunks))]
        data = self._ask(lambda store: b"".join(store.get(key) for key in keys))
        try:
            if data:
                self._got[host] = (state, unpack(data, f"the bundle of host {host}"))
        except UnreadableRecording:
            return  # overwritten while it was read: the next look brings the newer one

    def _ask(self, question: Callable[[Any], Answer]) -> Answer | None:
        """The answer of the store, None when it does not come."""
        answers: list[Answer] = []

        def ask() -> bool:
            if self._client is None:
                client = self._rendezvous.store.clone()
                client.set_timeout(timedelta(seconds=ANSWER_SECONDS))
                self._client = client
            answers.append(question(self._client))
            return True

        if self._is_lost:
            return None
        if not at_most(ANSWER_SECONDS, ask):
            self._is_lost = True  # torch would try to reach it again and again, and say so each time
        return answers[0] if answers else None
