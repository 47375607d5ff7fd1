"""An object store with a request quota per connection, in the manner of the hosted ones."""
import functools
import time

import torch


class Throttled(ConnectionError):
    pass


def retry(times, wait, exceptions):
    def wrap(fn):
        @functools.wraps(fn)
        def inner(*a, **kw):
            for attempt in range(times):
                try:
                    return fn(*a, **kw)
                except exceptions:
                    if attempt == times - 1:
                        raise
                    time.sleep(wait * 2 ** attempt)
        return inner
    return wrap


class ObjectStore:
    def __init__(self, quota):
        self.quota = self.left = quota

    def _charge(self):
        if self.left == 0:
            self.left = self.quota
            raise Throttled("429 slow down")
        self.left -= 1

    def parts(self, key):
        return 1 + sum(key) % 3

    def get(self, key):
        chunks = []
        for part in range(self.parts(key)):
            self._charge()
            g = torch.Generator().manual_seed(hash((key, part)) % 2 ** 31)
            chunks.append(torch.randn(48, 10, generator=g))
        return torch.cat(chunks)[:48]
