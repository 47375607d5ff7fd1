"""Signs of life of the launchers of one job, through the store of its own rendezvous: one small key a host, written anew.

Host 0 reads all of them, at once, and writes down under its own who is silent; the others read that one key. So a host but the
first sends the store two small words a beat. Who says goodbye is not missed.

The store lives on one host, and what all others send arrives there: of more than fifteen hosts each speaks less often, so that it
takes 10 KiB a second whatever the size of the job. A loss is noticed within 5 s among fifteen hosts. Among more it is noticed as
soon where it holds the ranks up, for then all hosts are called (`roll_call`), else later the more there are: `longest_unnoticed`.

Where the launcher that holds the store is killed, torch's launchers on all other hosts end within a second: too soon for a word
to be late. So a launcher whose ranks have ended says that at once, before it reports (`ending`). A store that goes without it was
lost.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from distdoctor.launch.rendezvous import Rendezvous
from distdoctor.launch.roll_call import Rest, RollCall
from distdoctor.launch.store_place import Knock, is_here, is_ours, knock
from distdoctor.recording.lost_host import LostHost
from distdoctor.recording.trace.layout import ranks_of, ranks_text
from distdoctor.recording.trace.process_key import ProcessKey

BEAT_SECONDS = 1.0  # at least
WORDS_A_SECOND = 15  # that the store takes, below 10 KiB with their headers; more hosts than that share them
EARLY_SHARE = 0.25  # of a beat, until all whom we watch were heard once: before that nobody would be missed
EARLY_BEATS = 10  # for so long after the ranks were started; where no distdoctor is, there is nobody to hear
SLACK_SECONDS = 2.5  # for a word that is late on a busy machine
STORE_SECONDS = 3.0  # for the store to answer; on a living host it takes milliseconds
MOST_NAMES = 8  # of silent hosts, in one sentence
PREFIX = "distdoctor/alive"


def beat_of(hosts: int) -> float:
    """Seconds from one word of a host to its next, in a job of so many."""
    return max(BEAT_SECONDS, hosts / WORDS_A_SECOND)


def longest_unnoticed(hosts: int) -> float:
    """Seconds after which host 0 knows that a host has fallen silent although no rank waits for it: a word may just have come,
    and one just been looked for. The others read of it a beat later."""
    return 2 * beat_of(hosts) + SLACK_SECONDS


@dataclass(frozen=True)
class _Word:
    """What a host says: how often it has said it, how many roll calls it has heard (-1: it cannot hear any), whether its ranks
    have ended and nobody is to miss it (`is_last`), whether the store is there, its ranks."""

    beat: int
    rolls: int
    is_last: bool
    keeps_store: bool
    ranks: tuple[int, ...]
    host: str

    def to_bytes(self) -> bytes:
        fields = (
            self.beat,
            self.rolls,
            int(self.is_last),
            int(self.keeps_store),
            ranks_text(self.ranks) or "-",
            self.host,
        )
        return " ".join(map(str, fields)).encode()

    @classmethod
    def of(cls, data: bytes) -> _Word:
        beat, rolls, last, store, ranks, host = data.decode("utf-8", "replace").split(" ", 5)
        return cls(int(beat), int(rolls), last == "1", store == "1", ranks_of(ranks), host[:64])


_NOTHING = "-"  # what the store answers for a key that is not there


class Presence:
    """Says that this launcher is there, and knows which other one has fallen silent. `changed` is called when that changes."""

    def __init__(self, rendezvous: Rendezvous, process: ProcessKey, changed: Callable[[], None]) -> None:
        self._rendezvous, self._process, self._changed = rendezvous, process, changed
        self._lock, self._telling = threading.Lock(), threading.Lock()
        self._known: tuple[str, ...] = ()  # the lost hosts of which `changed` was told
        self._over = threading.Event()
        self._attempt = -1
        self._ranks: tuple[int, ...] = ()
        self._client: Any = None
        self._is_broken = False  # the store closed the connection: torch would knock again and again, and say so
        self._knock = Knock.ANSWERED  # since then, by ourselves
        self._is_ending = False
        self._keeper = 0  # the host with the store, as far as it has said so; among those that we watch
        self._keeps_store = self._serves_store = False  # it is on this host; it is in this process, and ends with it
        self._beat = 0
        self._counted_in = -1  # the newest attempt in which we are counted among those who speak
        self._began = 0.0  # when the ranks were started, monotonic seconds
        self._answered = 0.0  # when the store last did, monotonic seconds
        self._heard: dict[int, tuple[_Word, float]] = {}  # of each host its newest word, and when that was new to us
        self._met: dict[int, float] = {}  # when each host was heard for the first time
        self._deaf: dict[int, float] = {}  # whom we watch and who did not answer when called, and since when
        self._rest = Rest()
        self._rolls: RollCall | None = None  # only among many hosts
        self._wake = threading.Event()
        self._said_silent: dict[int, float] = {}  # by host 0, and since when
        self._round: threading.Thread | None = None
        self._thread: threading.Thread | None = None

    def begin(self, attempt: int, ranks: Iterable[int]) -> None:
        """The ranks of this host were started; in a restart, anew."""
        if self._rendezvous.store is None or self._rendezvous.hosts < 2:
            return
        with self._lock:
            self._attempt, self._ranks, self._client, self._is_broken = attempt, tuple(ranks), None, False
            self._knock, self._keeper = Knock.ANSWERED, 0
            self._heard, self._met, self._deaf, self._said_silent = {}, {}, {}, {}
            self._began = self._answered = time.monotonic()
            self._rest, self._keeps_store = Rest(), is_here(self._rendezvous.store)
            self._serves_store = self._keeps_store and is_ours(self._rendezvous.store)
            if self._rendezvous.hosts > WORDS_A_SECOND:
                self._rolls = RollCall(self._new_client, f"{PREFIX}/{attempt}", self._wake.set)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="distdoctor-presence", daemon=True)
            self._thread.start()

    def rests(self, seconds: float) -> None:
        """No rank of ours has moved for so long: somebody may be lost."""
        rolls = self._rolls
        if rolls is None:
            return
        was_called = time.monotonic() - rolls.since < seconds / 2  # by another host, for the same reason
        if (was_called or not rolls.is_pending) and self._rest.lasts(seconds) and not was_called:
            self.call_all()

    def moves(self) -> None:
        """A rank of ours has moved again."""
        self._rest.ends()

    def call_all(self) -> None:
        """Ask all hosts at once whether they are there, where their words are rare."""
        if self._rolls is not None and self._client is not None and not self._rolls.is_over:
            self._rolls.ask(self._client)

    def lost(self, slack: float = SLACK_SECONDS) -> tuple[LostHost, ...]:
        """The hosts whose word is late by so many seconds, as far as we can know."""
        if self._thread is None:
            return ()
        now = time.monotonic()
        with self._lock:
            if self._store_is_silent(now):
                return () if self._keeps_store else self._the_one_with_the_store(now)
            silent = self._silent(slack) | self._deaf
            silent |= {host: at for host, at in self._said_silent.items() if host in self._heard}
            return tuple(
                self._lost(self._heard[host][0], at, now)
                for host, at in sorted(silent.items())
                if not self._heard[host][0].is_last
            )

    def are_alive(self, hosts: Iterable[int], slack: float = SLACK_SECONDS) -> bool:
        """Whether some of these hosts are heard, and their word is not late by so many seconds."""
        lost = {one.host for one in self.lost(slack)}
        with self._lock:
            words = [self._heard[host][0] for host in hosts if host in self._heard]
            return not self._is_broken and any(word.host not in lost for word in words)

    def are_lost(self, hosts: Iterable[int], slack: float = SLACK_SECONDS) -> bool:
        """Whether all of these hosts were heard once, and are among the lost."""
        lost = {one.host for one in self.lost(slack)}
        with self._lock:
            return all(host in self._heard and self._heard[host][0].host in lost for host in hosts)

    def misses_host_0(self, slack: float = SLACK_SECONDS) -> bool:
        """Whether the host that judges for many is among the lost."""
        with self._lock:
            name = self._heard[0][0].host if 0 in self._heard else ""
        return any(host.host == name for host in self.lost(slack))

    def left_without_a_word(self) -> tuple[LostHost, ...]:
        """The host of the store, where the store has closed the connection and that host's ranks had not ended. To be asked when
        our own part is over: in a restart, too, torch closes a store."""
        with self._lock:
            if not self._is_broken or self._keeps_store or self._knock is Knock.ANSWERED:
                return ()
            return self._the_one_with_the_store(time.monotonic())

    @property
    def hears(self) -> bool:
        """Whether more may be known in a moment: we have begun, and the store has not gone."""
        return self._thread is not None and not self._is_broken

    def named(self, hosts: Iterable[int]) -> str:
        """`ddh2, ddh3 and 4 more`; a host of which no word has come has its number alone."""
        with self._lock:
            names = [self._heard[host][0].host if host in self._heard else f"host {host}" for host in hosts]
        more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
        return ", ".join(names[:MOST_NAMES]) + more

    def ending(self) -> None:
        """Our ranks have ended, and we go on to report: nobody is to miss us, nor the store if it is ours. Returns at once."""
        self._is_ending = True
        if self._thread is not None and not self._over.is_set():
            threading.Thread(target=self._say_quietly, name="distdoctor-ending", daemon=True).start()
            self._wake.set()  # to hear how the others stand

    def end(self) -> None:
        """Say goodbye: the store, where it is ours, ends with us."""
        if self._thread is None or self._over.is_set():
            return
        self._over.set()
        self._wake.set()
        self._is_ending = True
        last = threading.Thread(target=self._say_quietly, name="distdoctor-goodbye", daemon=True)
        last.start()
        last.join(BEAT_SECONDS)

    def _silent(self, slack: float) -> dict[int, float]:
        """Of the hosts that are watched those whose word is late, and since when."""
        late = self._beat_seconds + slack
        watched = self._watched() & self._heard.keys()
        return {host: self._heard[host][1] for host in watched if self._answered - self._heard[host][1] > late}

    def _call_the_roll(self, rolls: RollCall) -> None:
        """Of the hosts that are watched those that have not heard the newest roll call, though they were there before."""
        if rolls.number and self._answered >= rolls.since + SLACK_SECONDS:
            watched = self._watched() & self._heard.keys()
            deaf = {host for host in watched if 0 <= self._heard[host][0].rolls < rolls.number}
            self._deaf = {host: rolls.since for host in deaf if self._met[host] < rolls.since} | self._deaf

    def _store_is_silent(self, now: float) -> bool:
        asked = self._rolls.since if self._rolls is not None else 0.0
        return now - self._answered > self._beat_seconds + SLACK_SECONDS or (
            asked > self._answered and now - asked > SLACK_SECONDS
        )

    def _the_one_with_the_store(self, now: float) -> tuple[LostHost, ...]:
        if self._rolls is not None and self._rolls.is_over:
            return ()
        keepers = [word for word, _ in self._heard.values() if word.keeps_store and not word.is_last]
        return tuple(self._lost(word, self._answered, now) for word in keepers[:1])

    def _lost(self, word: _Word, at: float, now: float) -> LostHost:
        key, has_ended = self._process, word.keeps_store and self._knock is Knock.REFUSED
        since, noticed = int(at * 1e9), int(now * 1e9)
        return LostHost(word.host, word.ranks, key.host, key.machine, since, noticed, word.keeps_store, has_ended)

    def _run(self) -> None:
        """A round a beat. One that hangs in a store that does not answer is left to hang, and no other is begun."""
        while not self._over.is_set():
            self._wake.wait(self._pause())
            self._wake.clear()
            if self._over.is_set():
                return
            if (self._round is None or not self._round.is_alive()) and not self._is_broken:
                self._round = threading.Thread(target=self._one_round, name="distdoctor-beat", daemon=True)
                self._round.start()
            self._tell_changes()  # a round that hangs is news as well

    def _tell_changes(self) -> None:
        now = tuple(lost.host for lost in self.lost())
        with self._telling:
            is_news, self._known = now != self._known, now
        if is_news:
            self._changed()

    def _pause(self) -> float:
        beat = self._beat_seconds
        if self._rendezvous.host_number == 0 and self._rolls is not None and self._rolls.is_pending:
            return BEAT_SECONDS / 2
        waits_for_some = not self._watched() <= self._heard.keys()
        return beat * EARLY_SHARE if waits_for_some and time.monotonic() - self._began < EARLY_BEATS * beat else beat

    @property
    def _beat_seconds(self) -> float:
        return beat_of(self._rendezvous.hosts)

    def _watched(self) -> set[int]:
        """The hosts whose words are read: by host 0 all others, by these host 0 and the one with the store."""
        if self._rendezvous.host_number == 0:
            return set(range(1, self._rendezvous.hosts))
        return {0, self._keeper} - {self._rendezvous.host_number}

    def _one_round(self) -> None:
        attempt = self._attempt
        try:
            if self._rendezvous.host_number == 0:  # who is missed is said without waiting for the next beat
                self._listen(attempt)
                self._say()
                self._judge_roll()
            else:
                self._say()
                self._listen(attempt)
        except Exception:
            found = knock(self._rendezvous.store)
            with self._lock:
                if attempt == self._attempt:
                    self._knock, self._is_broken = found, True
        self._tell_changes()  # now: the next round of many hosts is a minute away

    def _judge_roll(self) -> None:
        """Host 0 has heard all, or waited long enough, and has said who is missed: the others need not wait any longer."""
        rolls = self._rolls
        if rolls is not None and rolls.is_pending:
            with self._lock:
                all_there = all(word.rolls >= rolls.number or word.is_last for word, _ in self._heard.values())
                is_due = self._answered >= rolls.since + SLACK_SECONDS
            if all_there or is_due:
                rolls.judge(self._store())

    def _say_quietly(self) -> None:
        with contextlib.suppress(Exception):
            self._say()

    def _say(self) -> None:
        self._beat += 1
        attempt = self._attempt
        here, store = self._rendezvous.host_number, self._store()
        rolls = self._rolls.heard if self._rolls is not None else 0
        word = _Word(self._beat, rolls, self._is_ending, self._keeps_store, self._ranks, self._process.host).to_bytes()
        store.set(self._key(here), word + b"\n" + self._silent_hosts() if here == 0 else word)
        if self._counted_in != attempt:
            if self._keeps_store:
                store.set(self._key("store"), str(here))
            store.add(self._key("came"), 1)
            self._counted_in = attempt
        if self._is_ending and self._serves_store and self._rolls is not None and not self._rolls.is_over:
            self._rolls.end(store)

    def _silent_hosts(self) -> bytes:
        """Those that host 0 misses."""
        with self._lock:
            silent = self._silent(SLACK_SECONDS) | self._deaf
            return ranks_text(sorted(host for host in silent if not self._heard[host][0].is_last)).encode()

    def _listen(self, attempt: int) -> None:
        words, said = self._words_of_all() if self._rendezvous.host_number == 0 else self._words_of_host_0()
        now = time.monotonic()
        with self._lock:
            if attempt != self._attempt:
                return
            for host, word in words.items():
                self._met.setdefault(host, now)
                if host not in self._heard or self._heard[host][0] != word:
                    self._heard[host] = (word, now)
                    self._deaf.pop(host, None)
            since = now - self._beat_seconds - SLACK_SECONDS
            if self._rolls is not None and self._rolls.number:
                since = max(since, self._rolls.since)
            self._said_silent = {host: self._said_silent.get(host, since) for host in said}
            self._answered = now
            if self._rolls is not None:
                self._call_the_roll(self._rolls)

    def _words_of_all(self) -> tuple[dict[int, _Word], list[int]]:
        """As host 0 hears them; those of whom it has not heard yet are looked for while more have come than it knows."""
        store, known = self._store(), sorted(self._heard)
        if store.add(self._key("came"), 0) > len(known) + (self._counted_in == self._attempt):
            unknown = self._watched() - self._heard.keys()
            known += [host for host in sorted(unknown) if store.check([self._key(host)])]
        words = store.multi_get([self._key(host) for host in known]) if known else []
        return {host: _Word.of(word) for host, word in zip(known, words, strict=True)}, []

    def _words_of_host_0(self) -> tuple[dict[int, _Word], list[int]]:
        """Its own, with those of the hosts that it misses, and which these are."""
        store, here = self._store(), self._rendezvous.host_number
        # answered at once, there or not: `get` is a question more
        own, _, late = store.compare_set(self._key(0), _NOTHING, _NOTHING).partition(b"\n")
        if own == _NOTHING.encode():
            return {}, []  # not yet, or no distdoctor there: nobody to be missed
        said = [host for host in ranks_of(late.decode()) if host < self._rendezvous.hosts and host != here]
        unheard = {host for host in said if host not in self._heard}
        host_0 = _Word.of(own)
        if not (host_0.keeps_store or self._keeps_store):
            keeper = store.compare_set(self._key("store"), _NOTHING, _NOTHING).decode()
            if keeper != _NOTHING:
                self._keeper = int(keeper)
                unheard.add(self._keeper)
        words = {host: _Word.of(store.get(self._key(host))) for host in unheard}
        return {0: host_0, **words}, said

    def _store(self) -> Any:
        if self._client is None:
            self._client = self._new_client()
        return self._client

    def _new_client(self) -> Any:
        client = self._rendezvous.store.clone()
        client.set_timeout(timedelta(seconds=STORE_SECONDS))
        return client

    def _key(self, word: object) -> str:
        return f"{PREFIX}/{self._attempt}/{word}"
