import concurrent.futures as cf
import logging
import random
import time

import torch

log = logging.getLogger("remote")


class Unavailable(OSError):
    pass


class Bucket:
    """Objects behind a shaky connection."""

    def __init__(self, seed, trouble):
        self.rng = random.Random(seed)
        self.trouble = trouble

    def fetch(self, key):
        time.sleep(0.004)
        if self.rng.random() < self.trouble:
            raise Unavailable(f"503 for object {key}")
        g = torch.Generator().manual_seed(key)
        x = torch.randn(16, 3, 16, 16, generator=g)
        y = torch.randint(0, 5, (16,), generator=g)
        x[torch.arange(16), y % 3] += (y[:, None, None] - 2) * 0.8
        return x, y


class Ahead:
    """Keeps ``depth`` objects in flight; a failed one is asked for again, up to ``tries`` times."""

    def __init__(self, bucket, keys, depth=3, tries=12):
        self.bucket, self.keys, self.depth, self.tries = bucket, list(keys), depth, tries
        self.failed = 0

    def __len__(self):
        return len(self.keys)

    def __iter__(self):
        with cf.ThreadPoolExecutor(self.depth, thread_name_prefix="fetch") as pool:
            todo = iter(self.keys)
            flight = [(k, pool.submit(self.bucket.fetch, k)) for _, k in zip(range(self.depth), todo)]
            while flight:
                key, fut = flight.pop(0)
                yield self._settle(pool, key, fut)
                nxt = next(todo, None)
                if nxt is not None:
                    flight.append((nxt, pool.submit(self.bucket.fetch, nxt)))

    def _settle(self, pool, key, fut):
        for _ in range(self.tries):
            error = fut.exception()
            if error is None:
                return fut.result()
            if not isinstance(error, Unavailable):
                raise error
            self.failed += 1
            fut = pool.submit(self.bucket.fetch, key)
        raise Unavailable(f"object {key} given up")
