"""The hosts of one job hand each other their bundles through the store of its own rendezvous: no folder shared, no port opened.

What the store hands out grows with the square of the hosts where each takes all bundles. So of many hosts only host 0 takes them,
and the others take its verdict (`verdict_of_host_0`).

The store lives in the agent of one host and answers while ranks are stuck. Every question to it is asked on a connection of our
own and given up after a moment: that host may be gone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeVar

from distdoctor.errors import UnreadableRecording
from distdoctor.launch.rendezvous import Rendezvous, at_most
from distdoctor.launch.store_place import is_ours
from distdoctor.recording.bundle import pack, unpack
from distdoctor.recording.held_rows import Alike
from distdoctor.recording.recording import Recording

CHUNK_BYTES = 1 << 20
ANSWER_SECONDS = 3.0  # a store on a living host answers within milliseconds
# Hosts that all take all bundles: 16 MiB out of one store, and 1 CPU s of each host (benchmarks/exchange_scale.py); it has 3 s.
ALL_JUDGE_UP_TO = 32
SLOW_SECONDS = 7.0  # more for a host that lives: two busy cores were seen to take five
QUESTIONS_A_SECOND = 1000  # that the store takes from hosts that wait; it answers some 10,000
MOST_CHUNKS = 64  # that are read of one host: beyond that the word that says how many is damaged
SLOTS = 2  # of chunks a host: who reads one meets no half of the next
PREFIX = "distdoctor"
STANDING, MOVING, FINAL = "standing", "moving", "final"  # what a host says of its ranks
Answer = TypeVar("Answer")


class Exchange:
    """The bundles of one start of a job's ranks, each under the number of its host. Keys are bounded: two slots a host."""

    all_judge_up_to = ALL_JUDGE_UP_TO

    def __init__(self, rendezvous: Rendezvous) -> None:
        self._rendezvous = rendezvous
        self._client: Any = None
        self._of_attempt = -1
        self._is_lost = False  # the store did not answer: it, or the way to it, is gone
        self._sent: tuple[int, bytes, str] = (0, b"", MOVING)
        self._got: dict[int, tuple[str, Recording]] = {}
        self._pieces: dict[bytes, bytes] = {}  # what hosts have alike, by their digests
        self._held = Alike()
        self.silent: list[int] = []  # hosts of which nothing has come, by their numbers in the rendezvous

    @property
    def is_open(self) -> bool:
        """Whether there are other hosts, and a store to reach them by."""
        return self._rendezvous.store is not None and self._rendezvous.hosts > 1

    @property
    def one_judges(self) -> bool:
        """Whether host 0 alone takes the bundles, and judges for all."""
        return self.is_open and self._rendezvous.hosts > self.all_judge_up_to

    def give(self, recording: Recording, *, final: bool) -> None:
        """Put our bundle where the others find it: while our ranks stand, and at the end. What is there already is not sent
        again."""
        job = replace(recording.job, read_at_ns=0, read_wall_ns=0)  # when nothing else is new, nothing is
        apart: dict[bytes, bytes] | None = {} if final else None
        data = pack(replace(recording, job=job), apart)
        self.join_attempt()
        number, sent, how = self._sent
        wanted = FINAL if final else STANDING
        if (data, wanted) != (sent, how):
            self._sent = (number + 1, data, wanted)
            self.ask(lambda store: self._put_alike(store, apart or {}))
            self.ask(lambda store: self.put(store, self._rendezvous.host_number, (number + 1, data, wanted)))

    def _put_alike(self, store: Any, pieces: Mapping[bytes, bytes]) -> bool:
        """Write what no other host has written yet. Only at the end, where it is written once."""
        keys = {self._alike_key(digest): piece for digest, piece in pieces.items()}
        if keys and not store.check([*keys]):
            for key, piece in keys.items():
                if not store.check([key]):
                    store.set(key, piece)
        return True

    def _alike(self, digest: bytes) -> bytes:
        """What a host has put apart, read once for all of them; b"" where it cannot be had."""
        if digest not in self._pieces:
            key = self._alike_key(digest)
            found = self.ask(lambda store: store.get(key) if store.check([key]) else b"")
            if not found:
                return b""
            self._pieces[digest] = found
        return self._pieces[digest]

    def _alike_key(self, digest: bytes) -> str:
        return self.key("alike", digest.hex())

    def take_back(self) -> None:
        """Our ranks move again: what we gave is out of date, and must not be held against them."""
        number, _, how = self._sent
        if how == STANDING and self._of_attempt == self._rendezvous.attempt:
            self._sent = (number + 1, b"", MOVING)
            self.ask(lambda store: self.put(store, self._rendezvous.host_number, (number + 1, b"", MOVING)))

    def take(self) -> list[Recording]:
        """The bundle of each other host whose ranks do not move either, or have ended."""
        self.join_attempt()
        self._look()
        return [recording for _, recording in self._got.values()]

    def take_last_words(
        self,
        until: float,
        are_alive: Callable[[Sequence[int]], bool] = lambda hosts: False,
        are_lost: Callable[[Sequence[int]], bool] = lambda hosts: False,
    ) -> list[Recording]:
        """The bundle of each other host at its end. `until`: monotonic seconds up to which they are awaited, and somewhat longer
        where of those that are left some `are_alive`; not where all of them `are_lost`."""
        self.join_attempt()
        while True:
            began = time.monotonic()
            self._look()
            found = {host: recording for host, (state, recording) in self._got.items() if state.endswith(FINAL)}
            self.silent = [host for host in self._others if host not in found]
            if not self.silent or self._is_lost or are_lost(self.silent):
                return [*found.values()]
            # Fetching what was there takes long, and more has come: late is who was not there when we began.
            if began >= until and (began >= until + SLOW_SECONDS or not are_alive(self.silent)):
                return [*found.values()]
            time.sleep(0.1)

    @property
    def _others(self) -> list[int]:
        return [host for host in range(self._rendezvous.hosts) if host != self._rendezvous.host_number]

    def _look(self) -> None:
        states = self.ask(lambda store: {host: self.state(store, host) for host in self._others}) or {}
        for host, state in states.items():
            if not state or state.endswith(MOVING):
                self._got.pop(host, None)
            elif self._got.get(host, ("",))[0] != state:
                self._fetch(host, state)

    def part(self, until: float, missed: Callable[[], int] = lambda: 0) -> None:
        """Stay until everybody has what he came for: the store may live in this process. Of many hosts only whose it is stays.
        `missed()` is how many hosts do not come any more."""
        hosts = self._rendezvous.hosts
        self.ask(lambda store: store.add(self.key("gone"), 1))
        if self.one_judges and not is_ours(self._rendezvous.store):
            return
        while time.monotonic() < until:
            gone = self.ask(lambda store: store.add(self.key("gone"), 0))
            if gone is None or gone >= hosts - missed():
                return
            time.sleep(self.pause)

    def say_ended(self) -> None:
        """We are about to end this start of the job: ranks of other hosts, which then fail, are not to be restarted."""
        if self.is_open:
            self.join_attempt()
            self.ask(lambda store: store.add(self.key("ended"), 1))

    @property
    def was_ended(self) -> bool:
        """Whether a launcher on another host has said that it ends this start of the job."""
        self.join_attempt()
        return self.is_open and bool(self.ask(lambda store: store.add(self.key("ended"), 0)))

    def connect(self) -> None:
        """Connect while the store is known to answer."""
        if self.is_open:
            self.join_attempt()
            self.ask(lambda store: True)

    @property
    def pause(self) -> float:
        """Seconds from one question of a host that waits to its next: all of them ask one store."""
        return max(0.1, self._rendezvous.hosts / QUESTIONS_A_SECOND)

    def join_attempt(self) -> None:
        if self._of_attempt != self._rendezvous.attempt:
            self._client, self._of_attempt, self._is_lost = None, self._rendezvous.attempt, False
            self._sent, self._got, self._pieces, self._held = (0, b"", MOVING), {}, {}, Alike()

    def key(self, *words: object) -> str:
        return "/".join(map(str, (PREFIX, self._of_attempt, *words)))

    def put(self, store: Any, name: object, sent: tuple[int, bytes, str]) -> bool:
        """Write under a name what `state` and `data` read there: the number of the word, its bytes, and what it says."""
        number, data, how = sent
        chunks = [data[at : at + CHUNK_BYTES] for at in range(0, len(data), CHUNK_BYTES)]
        for at, chunk in enumerate(chunks):
            store.set(self.key(name, number % SLOTS, at), chunk)
        store.set(self.key(name), f"{number} {len(chunks)} {how}")
        return True

    def state(self, store: Any, name: object) -> str:
        """`NUMBER CHUNKS standing|moving|final` of a host, "" while it has sent nothing."""
        key = self.key(name)
        return str(store.get(key).decode("utf-8", "replace")) if store.check([key]) else ""

    def data(self, name: object, state: str) -> bytes:
        """What lies there, b"" where it cannot be had."""
        try:
            number, chunks = map(int, state.split()[:2])
        except ValueError:
            return b""
        keys = [self.key(name, number % SLOTS, at) for at in range(min(chunks, MOST_CHUNKS))]
        return self.ask(lambda store: b"".join(store.get(key) for key in keys)) or b""

    def _fetch(self, host: int, state: str) -> None:
        data = self.data(host, state)
        try:
            if data:
                self._got[host] = (state, unpack(data, f"the bundle of host {host}", self._alike, self._held))
        except UnreadableRecording:
            return  # overwritten while it was read: the next look brings the newer one

    def ask(self, question: Callable[[Any], Answer]) -> Answer | None:
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
