import os
import time


class FileLock:
    """Exclusive lock for processes that share a disk. A lock older than ``stale_after`` counts as left over."""

    def __init__(self, path, poll=0.05, stale_after=9.0):
        self.path = path
        self.poll = poll
        self.stale_after = stale_after

    def acquire(self):
        while True:
            try:
                os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
                return
            except FileExistsError:
                self._drop_if_stale()
                time.sleep(self.poll)

    def _drop_if_stale(self):
        try:
            if time.time() - os.stat(self.path).st_mtime > self.stale_after:
                os.unlink(self.path)
        except FileNotFoundError:
            pass

    def release(self):
        try:
            os.unlink(self.path)
        except FileNotFoundError:
            pass
