import json
import time


class MetricLogger:
    """Collects scalars and writes one JSON line every few steps."""

    def __init__(self, rank, every, sink=None):
        self.rank, self.every, self.sink = rank, every, sink
        self.tokens, self.t0 = 0, time.time()

    def count(self, n):
        self.tokens += n

    def due(self, step):
        return step % self.every == 0

    def write(self, step, **values):
        now = time.time()
        line = {"step": step, **values, "tok_per_s": round(self.tokens / (now - self.t0))}
        self.tokens, self.t0 = 0, now
        text = json.dumps(line)
        print(text, flush=True)
        if self.sink:
            with open(self.sink, "a") as f:
                f.write(text + "\n")
