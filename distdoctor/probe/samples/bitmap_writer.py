"""Which samples a long pass drew, exactly: one bit for each sample of the data set, in a file of its own beside the trace.

The trace holds every draw of a pass up to a limit, and of longer ones only a part. Here nothing is left out: when the block at
work is full, the bits of what it held are set in a file that is mapped into memory (10-35 ns a draw, 12.5 MB for 10^8 samples).
Space is reserved beforehand as for the trace; where there is none, that pass is only sampled, and nothing else changes.
"""

from __future__ import annotations

import mmap
import os
from array import array
from collections import deque
from typing import Any

from distdoctor.probe.interruptions import hand_on
from distdoctor.recording.trace.bitmap_file import COVERED, COVERED_AT, HEAD, HEAD_BYTES, MAGIC, bit_bytes, file_name

MOST_BYTES = 64 << 20  # of one rank: five passes over 10^8 samples. The oldest file makes room for the newest
MOST_FILES = 16


class BitmapWriter:
    """The bits of one pass, while it runs."""

    def __init__(self, path: str, pass_seq: int, length: int, numpy: Any) -> None:
        """OSError: there is no room for it, or the folder is gone; no file is left behind."""
        size = HEAD_BYTES + bit_bytes(length)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, size)
            self._map = mmap.mmap(fd, size)
        except OSError as error:
            hand_on(error)
            os.unlink(path)
            raise
        finally:
            os.close(fd)
        HEAD.pack_into(self._map, 0, MAGIC, pass_seq, length, 0)
        self._numpy = numpy
        self._length = length
        self._bits = numpy.frombuffer(self._map, numpy.uint8, offset=HEAD_BYTES)
        self._bit = numpy.array([1 << bit for bit in range(8)], numpy.uint8)
        self.covered = 0

    def add(self, indices: array[int]) -> bool:
        """Set the bits of these draws; False when one of them is no sample of the data set: then the set stands still."""
        numpy, bits = self._numpy, self._bits
        drawn = numpy.frombuffer(indices, numpy.uint32).astype(numpy.intp)
        if not len(drawn) or int(drawn.max()) >= self._length:
            return not len(drawn)
        places, ones = drawn >> 3, self._bit.take(drawn & 7)
        runs = numpy.flatnonzero(places[1:] != places[:-1])
        if 2 * len(runs) < len(places):  # read in order: eight neighbours in one byte
            runs = numpy.concatenate(((0,), runs + 1))
            places, ones = places.take(runs), numpy.bitwise_or.reduceat(ones, runs)
        bits[places] = bits.take(places) | ones
        # Of several draws in one byte the last one has won. `bitwise_or.at` alone would do, in twice the time.
        left = numpy.flatnonzero((bits.take(places) & ones) != ones)
        if len(left):
            numpy.bitwise_or.at(bits, places.take(left), ones.take(left))
        self.covered += len(indices)
        COVERED.pack_into(self._map, COVERED_AT, self.covered)  # last: what it counts is there
        return True


class BitmapWriters:
    """The files of one rank."""

    def __init__(self, folder: str, rank: int, attempt: int) -> None:
        self._folder, self._rank, self._attempt = folder, rank, attempt
        self._kept: deque[tuple[str, int]] = deque()
        self._room = True

    def begin(self, pass_seq: int, length: int) -> BitmapWriter | None:
        """A new file for this pass; None when there can be none."""
        size = bit_bytes(length)
        if not self._room or length <= 0 or size > MOST_BYTES:
            return None
        while len(self._kept) >= MOST_FILES or sum(bytes_ for _, bytes_ in self._kept) + size > MOST_BYTES:
            self._forget(self._kept.popleft()[0])
        path = os.path.join(self._folder, file_name(self._rank, self._attempt, pass_seq))
        try:
            import numpy  # as torch has done already; a torch without it goes on with what the trace holds

            made = BitmapWriter(path, pass_seq, length, numpy)
        except (OSError, ImportError) as error:
            hand_on(error)
            self._room = False  # not again: asking a full disk costs time
            return None
        self._kept.append((path, size))
        return made

    def _forget(self, path: str) -> None:
        try:
            os.unlink(path)
        except OSError as error:
            hand_on(error)
