import os
import time


class FolderLock:
    """Lock by exclusive creation of a file; works on network folders without flock."""

    def __init__(self, folder, name="build"):
        self.path = os.path.join(folder, name + ".lock")
        self.waited = 0.0

    def take(self, poll=0.1):
        began = time.monotonic()
        while True:
            try:
                fd = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
            except FileExistsError:
                time.sleep(poll)
                continue
            os.write(fd, str(os.getpid()).encode())
            os.close(fd)
            self.waited = time.monotonic() - began
            return self

    def give(self):
        try:
            os.unlink(self.path)
        except FileNotFoundError:
            pass
