import json
import os
import random


def write_shards(folder, events, users, items, shards):
    """Event log, one json object a line, as the collector writes it."""
    rng = random.Random(64)
    taste = [rng.gauss(0, 1) for _ in range(users)]
    worth = [rng.gauss(0, 1) for _ in range(items)]
    for s in range(shards):
        with open(os.path.join(folder, f"events-{s:03d}.jsonl"), "w") as fh:
            for n in range(events // shards):
                u, i = rng.randrange(users), rng.randrange(items)
                row = {"user": u, "item": i, "rating": round(taste[u] * worth[i] + rng.gauss(0, 0.3), 3)}
                if s == 4 and n == 610:
                    row["rating"] = None
                fh.write(json.dumps(row) + "\n")
