"""Signs of life of the launchers of one job, through the store of its own rendezvous: one small key a host, written every second.

Host 0 reads all of them and writes down who is silent; the others read that and host 0's own. So a host but the first asks the
store three small things a second, whatever the size of the job. Who says goodbye is not missed.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from distdoctor.launch.rendezvous import Rendezvous
from distdoctor.recording.lost_host import LostHost
from distdoctor.recording.trace.layout import ranks_of, ranks_text
from distdoctor.recording.trace.process_key import ProcessKey

BEAT_SECONDS = 1.0
EARLY_BEAT_SECONDS = 0.25  # until all whom we watch were heard once: before that nobody would be missed
EARLY_SECONDS = 10.0  # for so long after the ranks were started; where no distdoctor is, there is nobody to hear
SILENT_SECONDS = 3.5  # three beats and the time to write one: a loss is noticed within 5 s
STORE_SECONDS = 3.0  # for the store to answer; on a living host it takes milliseconds
PREFIX = "distdoctor/alive"


@dataclass(frozen=True)
class _Word:
    """What a host says: how often it has said it, whether that is the last time, whether the store is there, its ranks."""

    beat: int
    is_last: bool
    keeps_store: bool
    ranks: tuple[int, ...]
    host: str

    def to_bytes(self) -> bytes:
        fields = (self.beat, int(self.is_last), int(self.keeps_store), ranks_text(self.ranks) or "-", self.host)
        return " ".join(map(str, fields)).encode()

    @classmethod
    def of(cls, data: bytes) -> _Word:
        beat, last, store, ranks, host = data.decode("utf-8", "replace").split(" ", 4)
        return cls(int(beat), last == "1", store == "1", ranks_of(ranks), host[:64])


class Presence:
    """Says that this launcher is there, and knows which other one has fallen silent. `changed` is called when that changes."""

    def __init__(self, rendezvous: Rendezvous, process: ProcessKey, changed: Callable[[], None]) -> None:
        self._rendezvous, self._process, self._changed = rendezvous, process, changed
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._attempt = -1
        self._ranks: tuple[int, ...] = ()
        self._client: Any = None
        self._is_broken = False  # the store closed the connection: torch would knock again and again, and say so
        self._keeps_store = False
        self._beat = 0
        self._began = 0.0  # when the ranks were started, monotonic seconds
        self._answered = 0.0  # when the store last did, monotonic seconds
        self._heard: dict[int, tuple[_Word, float]] = {}  # of each host its newest word, and when that was new to us
        self._said_silent: dict[int, float] = {}  # by host 0, and since when
        self._round: threading.Thread | None = None
        self._thread: threading.Thread | None = None

    def begin(self, attempt: int, ranks: Iterable[int]) -> None:
        """The ranks of this host were started; in a restart, anew."""
        if self._rendezvous.store is None or self._rendezvous.hosts < 2:
            return
        with self._lock:
            self._attempt, self._ranks, self._client, self._is_broken = attempt, tuple(ranks), None, False
            self._heard, self._said_silent, self._answered = {}, {}, time.monotonic()
            self._began = self._answered
            self._keeps_store = _is_here(self._rendezvous.store)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="distdoctor-presence", daemon=True)
            self._thread.start()

    def lost(self, after: float = SILENT_SECONDS) -> tuple[LostHost, ...]:
        """The hosts that have been silent for so many seconds, as far as we can know."""
        if self._thread is None:
            return ()
        now = time.monotonic()
        with self._lock:
            if now - self._answered > SILENT_SECONDS:
                return () if self._keeps_store else self._the_one_with_the_store(now)
            silent = {host: at for host, (_, at) in self._heard.items() if self._answered - at > after}
            silent |= {host: at for host, at in self._said_silent.items() if host in self._heard}
            return tuple(
                self._lost(self._heard[host][0], at, now)
                for host, at in sorted(silent.items())
                if not self._heard[host][0].is_last
            )

    def end(self) -> None:
        """Say goodbye: nobody is to miss us."""
        if self._thread is None or self._over.is_set():
            return
        self._over.set()
        last = threading.Thread(target=self._say_once_more, name="distdoctor-goodbye", daemon=True)
        last.start()
        last.join(BEAT_SECONDS)

    def _the_one_with_the_store(self, now: float) -> tuple[LostHost, ...]:
        keepers = [word for word, _ in self._heard.values() if word.keeps_store and not word.is_last]
        return tuple(self._lost(word, self._answered, now) for word in keepers[:1])

    def _lost(self, word: _Word, at: float, now: float) -> LostHost:
        key = self._process
        return LostHost(word.host, word.ranks, key.host, key.machine, int(at * 1e9), int(now * 1e9), word.keeps_store)

    def _run(self) -> None:
        """A round a beat. One that hangs in a store that does not answer is left to hang, and no other is begun."""
        known: tuple[str, ...] = ()
        while not self._over.wait(self._pause()):
            if (self._round is None or not self._round.is_alive()) and not self._is_broken:
                self._round = threading.Thread(target=self._one_round, name="distdoctor-beat", daemon=True)
                self._round.start()
            now = tuple(lost.host for lost in self.lost())
            if now != known:
                known = now
                self._changed()

    def _pause(self) -> float:
        waits_for_some = not self._watched() <= self._heard.keys() and time.monotonic() - self._began < EARLY_SECONDS
        return EARLY_BEAT_SECONDS if waits_for_some else BEAT_SECONDS

    def _watched(self) -> set[int]:
        """The hosts whose words are read: by host 0 all others, by these host 0."""
        return set(range(1, self._rendezvous.hosts)) if self._rendezvous.host_number == 0 else {0}

    def _one_round(self) -> None:
        attempt = self._attempt
        try:
            self._say(is_last=False)
            self._listen(attempt)
        except Exception:
            self._is_broken = attempt == self._attempt

    def _say_once_more(self) -> None:
        with contextlib.suppress(Exception):
            self._say(is_last=True)

    def _say(self, *, is_last: bool) -> None:
        self._beat += 1
        word = _Word(self._beat, is_last, self._keeps_store, self._ranks, self._process.host)
        self._store().set(self._key(self._rendezvous.host_number), word.to_bytes())

    def _listen(self, attempt: int) -> None:
        here, store = self._rendezvous.host_number, self._store()
        said = self._silent_by_host_0(store) if here else []
        words = {host: self._word(store, host) for host in dict.fromkeys((*sorted(self._watched()), *said))}
        now = time.monotonic()
        with self._lock:
            if attempt != self._attempt:
                return
            for host, word in words.items():
                if word is not None and (host not in self._heard or self._heard[host][0] != word):
                    self._heard[host] = (word, now)
            self._said_silent = {
                host: self._said_silent.get(host, now - SILENT_SECONDS) for host in said if host != here
            }
            self._answered = now
            silent = [host for host, (_, at) in self._heard.items() if now - at > SILENT_SECONDS]
        if here == 0 and self._rendezvous.hosts > 2:
            store.set(self._key("silent"), ",".join(map(str, silent)) or "-")

    def _silent_by_host_0(self, store: Any) -> list[int]:
        key = self._key("silent")
        if self._rendezvous.hosts < 3 or not store.check([key]):
            return []
        return [host for host in ranks_of(store.get(key).decode()) if host < self._rendezvous.hosts]

    def _word(self, store: Any, host: int) -> _Word | None:
        key = self._key(host)
        if host not in self._heard and not store.check([key]):
            return None  # not yet, or no distdoctor there: nobody to be missed
        return _Word.of(store.get(key))

    def _store(self) -> Any:
        if self._client is None:
            client = self._rendezvous.store.clone()
            client.set_timeout(timedelta(seconds=STORE_SECONDS))
            self._client = client
        return self._client

    def _key(self, word: object) -> str:
        return f"{PREFIX}/{self._attempt}/{word}"


def _is_here(store: Any) -> bool:
    """Whether the store's address is one of this host."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(store.host, 0, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.bind(address)
    except (OSError, AttributeError):
        return False
    return True
