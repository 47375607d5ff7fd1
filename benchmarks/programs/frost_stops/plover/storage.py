import functools
import logging
import os
import random
import time

log = logging.getLogger("storage")


def retry(attempts=4, wait=0.05, on=(OSError,)):
    def wrap(fn):
        @functools.wraps(fn)
        def inner(*args, **kwargs):
            for n in range(1, attempts + 1):
                try:
                    return fn(*args, **kwargs)
                except on as e:
                    if n == attempts:
                        raise
                    log.warning("%s: %s, attempt %d of %d", fn.__name__, e, n, attempts)
                    time.sleep(wait * n)

        return inner

    return wrap


class Bucket:
    """A folder that behaves like a network mount: a write is refused now and then."""

    def __init__(self, root, salt, refuse=0.12):
        self.root = root
        self.refuse = refuse
        self._dice = random.Random(salt)

    def put(self, name, payload):
        if self._dice.random() < self.refuse:
            raise OSError(5, "Input/output error", name)
        tmp = os.path.join(self.root, name + ".tmp")
        with open(tmp, "wb") as f:
            f.write(payload)
        os.replace(tmp, os.path.join(self.root, name))
