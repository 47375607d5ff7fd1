import logging
import queue
import threading

import torch

log = logging.getLogger("feed")


class NoMoreSources(Exception):
    pass


class Source:
    """One recording station. Some stop sending earlier than others."""

    def __init__(self, station, length, batch):
        self.station, self.left, self.batch = station, length, batch
        self.gen = torch.Generator().manual_seed(station)

    def read(self):
        if self.left == 0:
            raise NoMoreSources(self.station)
        self.left -= 1
        y = torch.randint(0, 4, (self.batch,), generator=self.gen)
        x = torch.randn(self.batch, 6, 32, generator=self.gen)
        x[:, 0] += y[:, None] * 0.7
        return x, y


class Feed:
    """A thread per station into one queue; goes on while any station is alive."""

    def __init__(self, sources, depth=6):
        self.q = queue.Queue(depth)
        self.stop = threading.Event()
        self.threads = [threading.Thread(target=self._pull, args=(s,), daemon=True, name=f"station-{s.station}")
                        for s in sources]
        for t in self.threads:
            t.start()

    def _offer(self, item):
        while not self.stop.is_set():
            try:
                self.q.put(item, timeout=0.2)
                return True
            except queue.Full:
                continue
        return False

    def _pull(self, source):
        try:
            while self._offer(source.read()):
                pass
        except NoMoreSources as e:
            log.info("station %s has ended", e)

    def take(self):
        """The next batch, or None once all the stations have ended."""
        while True:
            try:
                return self.q.get(timeout=0.1)
            except queue.Empty:
                if not any(t.is_alive() for t in self.threads) and self.q.empty():
                    return None

    def close(self):
        self.stop.set()
        for t in self.threads:
            t.join()
