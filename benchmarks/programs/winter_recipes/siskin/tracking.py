import logging
from collections import defaultdict


class Tracker:
    """Curves of the monitored quantities; smoothing happens when a report is
    written, and the whole curve goes into the summary at the end of the run."""

    def __init__(self):
        self.curves = defaultdict(list)

    def update(self, **values):
        for name, value in values.items():
            self.curves[name].append(value)

    def report(self, step, window=10):
        parts = []
        for name, curve in self.curves.items():
            tail = [float(v) for v in curve[-window:]]
            parts.append(f"{name} {sum(tail) / len(tail):.4f}")
        logging.info("step %d %s", step, " ".join(parts))

    def summary(self):
        return {name: [float(v) for v in curve] for name, curve in self.curves.items()}
