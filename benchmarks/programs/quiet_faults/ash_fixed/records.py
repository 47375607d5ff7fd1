import csv
import random
from pathlib import Path

KINDS = ["login", "search", "view", "cart", "pay", "refund", "chat", "share"]
DEVICES = [f"dev{i:02d}" for i in range(24)]
OUTCOMES = ["leaves", "returns", "buys", "complains", "refers"]


def write_logs(folder, files=6, rows=160, seed=5):
    effect = random.Random(1)
    kind_pull = {k: [effect.gauss(0, 1.6) for _ in OUTCOMES] for k in KINDS}
    dev_pull = {d: [effect.gauss(0, 1.2) for _ in OUTCOMES] for d in DEVICES}
    rng = random.Random(seed)
    for f in range(files):
        with open(Path(folder) / f"events-{f:02d}.csv", "w", newline="") as out:
            writer = csv.writer(out)
            for _ in range(rows):
                kind, device = rng.choice(KINDS), rng.choice(DEVICES)
                amount = rng.random()
                scores = [a + b + rng.gauss(0, 0.5) for a, b in zip(kind_pull[kind], dev_pull[device])]
                outcome = OUTCOMES[max(range(len(scores)), key=scores.__getitem__)]
                writer.writerow([kind, device, f"{amount:.4f}", outcome])


def read_logs(paths):
    rows = []
    for path in paths:
        with open(path, newline="") as f:
            rows.extend((k, d, float(a), o) for k, d, a, o in csv.reader(f))
    return rows


class Encoder:
    """Turns the text columns into ids."""

    def __init__(self):
        self.tables = {"kind": {}, "device": {}, "outcome": {}}

    def fit(self, rows):
        for kind, device, _, outcome in rows:
            for name, value in (("kind", kind), ("device", device), ("outcome", outcome)):
                table = self.tables[name]
                table.setdefault(value, len(table))
        return self

    def encode(self, rows):
        kinds = [self.tables["kind"][r[0]] for r in rows]
        devices = [self.tables["device"][r[1]] for r in rows]
        amounts = [r[2] for r in rows]
        outcomes = [self.tables["outcome"][r[3]] for r in rows]
        return kinds, devices, amounts, outcomes
