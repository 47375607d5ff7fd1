import random

import torch

SKIP = -1


class Plan:
    """Token-budget batching: long sentences make small micro-batches, and ranks may get different numbers of them."""

    def __init__(self, rank, world, sentences=3600, budget=220, per_step=24, vocab=70, tags=5):
        rng = random.Random(0)
        rows = []
        for _ in range(sentences):
            n = min(90, int(rng.lognormvariate(2.7, 0.6)) + 3)
            ids = [rng.randrange(1, vocab) for _ in range(n)]
            rows.append((ids, [(a * 3 + b) % tags for a, b in zip(ids, [0] + ids[:-1])]))
        self.steps = []
        for lo in range(0, len(rows) - per_step * world + 1, per_step * world):
            part = rows[lo:lo + per_step * world][rank::world]
            self.steps.append(self.pack(sorted(part, key=lambda r: len(r[0])), budget))

    @staticmethod
    def pack(rows, budget):
        out, cur = [], []
        for row in rows:
            if cur and (len(cur) + 1) * len(row[0]) > budget:
                out.append(cur)
                cur = []
            cur.append(row)
        out.append(cur)
        return out

    def __iter__(self):
        for micro in self.steps:
            yield [self.tensorize(rows) for rows in micro]

    @staticmethod
    def tensorize(rows):
        width = max(len(r[0]) for r in rows)
        ids = torch.zeros(len(rows), width, dtype=torch.long)
        tags = torch.full((len(rows), width), SKIP)
        for k, (a, b) in enumerate(rows):
            ids[k, : len(a)] = torch.tensor(a)
            tags[k, : len(b)] = torch.tensor(b)
        return ids, tags
