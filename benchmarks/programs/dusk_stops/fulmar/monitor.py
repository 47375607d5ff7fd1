import logging
import threading
import time

import torch
import torch.distributed as dist

log = logging.getLogger("monitor")


class ThroughputMonitor(threading.Thread):
    """Adds the sample counts of all ranks up every `interval` seconds.

    Runs its collectives on a separate group; each round also carries the wish to stop, so that all ranks end
    after the same round.
    """

    def __init__(self, group, interval):
        super().__init__(daemon=True)
        self.group, self.interval = group, interval
        self._lock = threading.Lock()
        self._count = 0
        self._stop_wanted = threading.Event()

    def add(self, n):
        with self._lock:
            self._count += n

    def run(self):
        last = time.time()
        while True:
            self._stop_wanted.wait(self.interval)
            with self._lock:
                n, self._count = self._count, 0
            msg = torch.tensor([float(n), float(self._stop_wanted.is_set())])
            dist.all_reduce(msg, group=self.group)
            now = time.time()
            if dist.get_rank() == 0:
                log.info("%.0f samples/s", msg[0].item() / (now - last))
            last = now
            if msg[1].item() == self.group.size():
                return

    def stop(self):
        self._stop_wanted.set()
        self.join()
