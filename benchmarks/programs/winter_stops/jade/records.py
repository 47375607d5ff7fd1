"""Newline-delimited records, as our labelling vendor delivers them."""
import json
import logging
import os
import random

import torch

log = logging.getLogger("records")


def write_delivery(folder, parts, per_part, dim, seed):
    os.makedirs(folder, exist_ok=True)
    rng = random.Random(seed)
    w = [[rng.gauss(0, 1) for _ in range(dim)] for _ in range(5)]
    names = []
    for part in range(parts):
        path = os.path.join(folder, f"part-{part:03d}.jsonl")
        with open(path, "w") as f:
            for i in range(per_part):
                x = [rng.gauss(0, 1) for _ in range(dim)]
                scores = [sum(a * b for a, b in zip(row, x)) for row in w]
                record = {"x": [round(v, 3) for v in x], "label": scores.index(max(scores))}
                if part == 1 and i == int(per_part * 0.3):
                    record["label"] = "unsure"
                f.write(json.dumps(record) + "\n")
        names.append(path)
    return names


def parse(line):
    record = json.loads(line)
    return torch.tensor(record["x"]), int(record["label"])


def stream(paths, batch):
    """Endless batches over the given files."""
    while True:
        xs, ys = [], []
        for path in paths:
            with open(path) as f:
                for line in f:
                    try:
                        x, y = parse(line)
                    except (ValueError, KeyError) as e:
                        log.warning("%s: record dropped: %s", path, e)
                        continue
                    xs.append(x)
                    ys.append(y)
                    if len(xs) == batch:
                        yield torch.stack(xs), torch.tensor(ys)
                        xs, ys = [], []
