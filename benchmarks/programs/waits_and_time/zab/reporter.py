import json
import threading
import time


class Collector:
    """Far end of the metrics service: an append-only file behind a slow link."""

    def __init__(self, path, latency=0.35):
        self.path, self.latency = path, latency

    def post(self, rows):
        body = "".join(json.dumps(r) + "\n" for r in rows)
        time.sleep(self.latency)
        with open(self.path, "a") as fh:
            fh.write(body)


class Reporter(threading.Thread):
    """Gathers rows from the training loop and posts them from a thread of its own."""

    def __init__(self, collector, every):
        super().__init__(name="reporter", daemon=True)
        self.collector, self.every = collector, every
        self.rows = []
        self.guard = threading.Lock()
        self.over = threading.Event()
        self.sent = 0

    def add(self, **row):
        row["time"] = time.time()
        with self.guard:
            self.rows.append(row)

    def flush(self):
        with self.guard:
            rows, self.rows = self.rows, []
        if rows:
            self.collector.post(rows)
            self.sent += len(rows)

    def run(self):
        while not self.over.wait(self.every):
            self.flush()

    def close(self):
        self.over.set()
        self.join()
        self.flush()
