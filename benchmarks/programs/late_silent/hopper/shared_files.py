import contextlib
import fcntl
import json
import os
from pathlib import Path


@contextlib.contextmanager
def exclusive(path: Path):
    with open(path, "a") as fh:
        fcntl.flock(fh, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(fh, fcntl.LOCK_UN)


def cached_vocabulary(path: Path, words):
    """The first process to come builds the file, the others find it done."""
    with exclusive(path.with_suffix(".lock")):
        if not path.exists():
            table = {w: i for i, w in enumerate(sorted(set(words)))}
            draft = path.with_suffix(f".{os.getpid()}.tmp")
            draft.write_text(json.dumps(table))
            draft.replace(path)
        return json.loads(path.read_text())


class EventLog:
    """One file for all processes: O_APPEND, one write a line, under a lock."""

    def __init__(self, path: Path, fresh: bool):
        self.path = path
        self.fd = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o644)
        if fresh:
            os.ftruncate(self.fd, 0)

    def write(self, **fields):
        line = (json.dumps(fields) + "\n").encode()
        fcntl.flock(self.fd, fcntl.LOCK_EX)
        try:
            os.write(self.fd, line)
        finally:
            fcntl.flock(self.fd, fcntl.LOCK_UN)

    def read(self):
        return [json.loads(line) for line in self.path.read_text().splitlines()]

    def close(self):
        os.close(self.fd)
