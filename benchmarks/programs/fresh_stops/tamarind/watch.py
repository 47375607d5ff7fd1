"""Keeps an eye on the load of every process while training goes on."""
import os
import threading
import time

import torch
import torch.distributed as dist


class LoadWatch:
    def __init__(self, period=0.25):
        self.period = period
        self.table = []
        self._quit = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="load-watch", daemon=True)

    def start(self):
        self._thread.start()
        return self

    def sample(self):
        t = os.times()
        return torch.tensor([t.user, t.system, time.monotonic()], dtype=torch.float64)

    def _loop(self):
        rows = [torch.zeros(4, dtype=torch.float64) for _ in range(dist.get_world_size())]
        while True:
            time.sleep(self.period)
            leaving = torch.tensor([float(self._quit.is_set())], dtype=torch.float64)
            dist.all_gather(rows, torch.cat([self.sample(), leaving]))
            self.table.append(torch.stack(rows))
            if all(r[3] > 0 for r in rows):
                return

    def stop(self):
        self._quit.set()
        self._thread.join()

    def summary(self):
        if len(self.table) < 2:
            return "no samples"
        span = self.table[-1] - self.table[0]
        busy = (span[:, 0] + span[:, 1]) / span[:, 2].clamp(min=1e-6)
        return "  ".join(f"r{i}:{b:.2f}" for i, b in enumerate(busy.tolist()))
