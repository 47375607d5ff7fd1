"""Curves for the page that people look at while the job runs."""
import json
import os
import statistics


class Curves:
    WINDOW = 60

    def __init__(self, path):
        self.path = path
        self.raw = {}

    def add(self, **values):
        for k, v in values.items():
            self.raw.setdefault(k, []).append(float(v))
        self.publish()

    def smooth(self, series):
        out = []
        for i in range(len(series)):
            around = sorted(series[max(0, i - self.WINDOW):i + 1])
            mid = statistics.median(around)
            spread = statistics.median([abs(v - mid) for v in around])
            out.append((mid, mid - spread, mid + spread))
        return out

    def publish(self):
        page = {k: {"raw": v, "smooth": self.smooth(v)} for k, v in self.raw.items()}
        with open(self.path + ".tmp", "w") as f:
            json.dump(page, f)
        os.replace(self.path + ".tmp", self.path)
