"""What is seen of torch's rendezvous: which hosts have come, the number of the start that they agreed on, the job's own store."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

FIRST_WORD_SECONDS = 30.0  # of waiting, before it is said who is there; then after twice as long, again and again
AGREED_SECONDS = 3.0  # for host 0 to say which start this is; all come out of the rendezvous together
AGREED = "distdoctor/start"
LOOK_SECONDS = 0.05
FAREWELL_SECONDS = 3.0  # torch's own shutdown asks a store that may be gone, for minutes


class Rendezvous:
    """Follows the handler of torch's agent. `attempt` is the same number on all hosts: torch's own count of rounds (c10d, etcd;
    a static rendezvous, whose hosts start together and never again one by one, is counted here), or the first that no host's run
    folder holds yet (`unused`): a job may run again where it ran before. `store` belongs to the current round, None before the
    first."""

    def __init__(self, say: Callable[[str], None] = lambda words: None, unused: Callable[[], int] = lambda: 0) -> None:
        self._say, self._unused = say, unused
        self._handler: Any = None
        self._starts = 0
        self._joined = threading.Event()
        self._known: list[str] = []  # who had come when it was last looked at: torch forgets them where it gives up
        self.attempt = 0
        self.store: Any = None
        self.host_number = -1  # of this launcher in the current round; -1 before the first
        self.hosts = 0
        self.wanted = 0

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """While this lasts, every handler that torch makes is followed."""
        from torch.distributed.elastic.rendezvous import registry

        make = registry.get_rendezvous_handler

        def followed(parameters: Any) -> Any:
            handler = make(parameters)
            self._follow(handler, int(parameters.max_nodes))
            return handler

        registry.get_rendezvous_handler = followed  # type: ignore[assignment]
        try:
            yield
        finally:
            registry.get_rendezvous_handler = make

    def _follow(self, handler: Any, wanted: int) -> None:
        self._handler, self.wanted = handler, wanted
        join, shutdown = handler.next_rendezvous, handler.shutdown

        def next_rendezvous() -> Any:
            self._joined.clear()
            threading.Thread(target=self._tell_who_waits, name="distdoctor-waiting", daemon=True).start()
            try:
                info = join()
            finally:
                self._joined.set()
            self._start(info)
            return info

        handler.next_rendezvous = next_rendezvous
        handler.shutdown = lambda: at_most(FAREWELL_SECONDS, shutdown)

    def _start(self, info: Any) -> None:
        number = getattr(self._state, "round", None)
        of_torch = int(number) if number is not None else self._starts
        self._starts += 1
        self.store, self.host_number, self.hosts = info.store, int(info.rank), int(info.world_size)
        self.attempt = max(of_torch, self._unused())
        if self.hosts > 1:
            at_most(AGREED_SECONDS, lambda: self._agree(of_torch))

    def _agree(self, of_torch: int) -> bool:
        """Take host 0's number, the largest that any host asks for. Host 0 may be without distdoctor, or gone: then everybody's
        own has to do."""
        store, key, late = self.store.clone(), f"{AGREED}/{of_torch}", time.monotonic() + AGREED_SECONDS
        if self.attempt > of_torch:
            store.set(f"{key}/{self.host_number}", str(self.attempt))
            store.add(f"{key}/asked", 1)
        came = store.add(f"{key}/came", 1)
        if self.host_number == 0:
            while came < self.hosts and time.monotonic() < late - AGREED_SECONDS / 2:
                time.sleep(LOOK_SECONDS)
                came = store.add(f"{key}/came", 0)
            asking = [f"{key}/{host}" for host in range(self.hosts)] if store.add(f"{key}/asked", 0) else []
            wanted = [int(store.get(one)) for one in asking if store.check([one])]
            self.attempt = max([self.attempt, *wanted])
            store.set(key, str(self.attempt))
            return True
        while not store.check([key]):  # asked again and again: torch writes a warning where a timed wait ends in vain
            if time.monotonic() > late:
                return False
            time.sleep(LOOK_SECONDS)
        self.attempt = int(store.get(key))
        return True

    @property
    def _state(self) -> Any:
        """Of torch's dynamic rendezvous, None with any other kind."""
        return getattr(getattr(self._handler, "_state_holder", None), "state", None)

    @property
    def came(self) -> list[str]:
        """The hosts that wait in the rendezvous now, as far as torch tells."""
        nodes = [*getattr(self._state, "participants", ())]
        return sorted(str(getattr(node, "addr", node)) for node in nodes)

    @property
    def who_waits(self) -> str:
        """`1 of 2 hosts have come: ddh1`; "" where one host is the whole job."""
        if self.wanted < 2:
            return ""
        came = self.came or self._known
        if not came:
            return f"waiting for {self.wanted} hosts, this one is there"
        return f"{len(came)} of {self.wanted} hosts have come: {', '.join(came[:8])}{', ...' if len(came) > 8 else ''}"

    def _tell_who_waits(self) -> None:
        began, due = time.monotonic(), FIRST_WORD_SECONDS
        self._known = []
        while not self._joined.wait(1.0):
            self._known = self.came or self._known
            if self.wanted > 1 and time.monotonic() - began >= due:
                self._say(f"{self.who_waits}, after {due:.0f} s")
                due *= 2


def at_most(seconds: float, ask: Callable[[], Any]) -> bool:
    """Ask in a thread of its own and wait for so long; whether the answer was good and came in time."""
    answer: list[Any] = []
    asked = threading.Thread(target=lambda: answer.append(_quietly(ask)), name="distdoctor-farewell", daemon=True)
    asked.start()
    asked.join(seconds)
    return bool(answer and answer[0])


def _quietly(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except Exception:
        return False  # whoever asks has nothing better to do than to go on
