"""Shared blackboard on top of the rendezvous store: tickets, results and a mutex."""
import os
import pickle
import time
from contextlib import contextmanager


class Board:
    def __init__(self, store, me):
        self.store, self.me = store, me

    def ticket(self, pool):
        return self.store.add(f"{pool}/ticket", 1) - 1

    def put(self, pool, item, value):
        self.store.set(f"{pool}/{item}", pickle.dumps(value))

    def get(self, pool, item):
        return pickle.loads(self.store.get(f"{pool}/{item}"))

    @contextmanager
    def mutex(self, name):
        """Spins on compare-and-set; the holder is named in the store for debugging."""
        key, mine, delay = f"mutex/{name}", f"held-by-{self.me}-{os.getpid()}", 0.005
        while True:
            if self.store.compare_set(key, "", mine) == mine.encode():
                break
            if self.store.compare_set(key, "free", mine) == mine.encode():
                break
            time.sleep(delay)
            delay = min(delay * 1.5, 0.1)
        try:
            yield
        finally:
            self.store.set(key, "free")
