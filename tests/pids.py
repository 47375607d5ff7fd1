"""A process under a number that another one had: the kernel hands out the next free one after the last."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator, Sequence

LAST = "/proc/sys/kernel/ns_last_pid"  # of this PID namespace


class CannotChoose(Exception):
    """The kernel lets only root choose, and somebody may always be faster."""


@contextlib.contextmanager
def process_under(pid: int, words: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a command as process `pid`, which nobody has at the moment.

    CannotChoose: it got another number.
    """
    process = _started(pid, words)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _started(pid: int, words: Sequence[str]) -> subprocess.Popen[bytes]:
    for _ in range(50):
        try:
            with open(LAST, "w", encoding="ascii") as last:
                last.write(str(pid - 1))
        except OSError as error:
            raise CannotChoose(str(error)) from None
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        if process.pid == pid:
            return process
        process.kill()
        process.wait()
    raise CannotChoose(f"{pid} is not free")
