"""Step records of a run, written by a thread so that the disk never slows training."""
import csv
import os
import queue
import threading


class Ledger:
    FIELDS = ["step", "epoch", "loss", "grad_norm", "lr"]

    def __init__(self, folder, rows_per_file=400, backlog=32):
        os.makedirs(folder, exist_ok=True)
        self.folder = folder
        self.rows_per_file = rows_per_file
        self.pending = queue.Queue(maxsize=backlog)
        self.part = 0
        self.thread = threading.Thread(target=self._drain, name="ledger", daemon=True)
        self.thread.start()

    def _open(self):
        handle = open(os.path.join(self.folder, f"steps-{self.part:03d}.csv"), "w", newline="")
        writer = csv.DictWriter(handle, self.FIELDS)
        writer.writeheader()
        return handle, writer

    def _drain(self):
        handle, writer = self._open()
        rows = 0
        while True:
            record = self.pending.get()
            if record is None:
                break
            writer.writerow(record)
            rows += 1
            if rows == self.rows_per_file:
                handle.close()
                self.part += 1
                handle, writer = self._open()
                rows = 0
        handle.close()

    def add(self, **record):
        self.pending.put(record)

    def close(self):
        self.pending.put(None)
        self.thread.join()
