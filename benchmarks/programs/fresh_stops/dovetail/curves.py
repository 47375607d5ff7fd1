"""Curves for the page that people look at while the job runs."""
import json
import os
import statistics


class Curves:
    WINDOW = 60

    def __init__(self, path):
        self.path = path
        self.raw, self.soft, self.added = {}, {}, 0

    def add(self, **values):
        for k, v in values.items():
            series = self.raw.setdefault(k, [])
            series.append(float(v))
            self.soft.setdefault(k, []).append(self.smooth(series))
        self.added += 1
        if self.added % 50 == 0:
            self.publish()

    def smooth(self, series):
        around = series[-self.WINDOW - 1:]
        mid = statistics.median(around)
        spread = statistics.median([abs(v - mid) for v in around])
        return mid, mid - spread, mid + spread

    def publish(self):
        page = {k: {"raw": v, "smooth": self.soft[k]} for k, v in self.raw.items()}
        with open(self.path + ".tmp", "w") as f:
            json.dump(page, f)
        os.replace(self.path + ".tmp", self.path)
