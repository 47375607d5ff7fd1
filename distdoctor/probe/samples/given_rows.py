"""Which samples a wrapped model is trained on where no loader tells: 32 bits of each row of its first input, while they lie on
the host. They go into the trace as those of a pass do. Reads bytes; runs no operation of torch's.
"""

from __future__ import annotations

import ctypes
import time
import zlib
from array import array

import torch
from torch import Tensor

from distdoctor.probe import sites
from distdoctor.probe.context import Rank
from distdoctor.probe.samples.sample_pass import PassWriter
from distdoctor.probe.tensors.digests import is_readable
from distdoctor.probe.writer import TraceWriter
from distdoctor.recording.trace.layout import PassFlag

BYTES = 1024  # of a row
MOST_ROWS = 4096  # of one batch
FREE_SECONDS, SHARE = 0.2, 0.002  # what it may cost before it ends


class GivenRows:
    """From the first forward that trains until a loader begins to be read with gradients on, or room or time are spent."""

    optimizer = steps = 0  # as `PassWriter` asks for them: whoever gives rows to a model trains

    def __init__(self, rank: Rank, trace: TraceWriter) -> None:
        self.rank, self.trace = rank, trace
        self._writer: PassWriter | None = None
        self._began, self._spent = time.monotonic(), 0.0
        rank.on_given = rank.guarded(self._take)

    def loader_begins(self) -> None:
        if torch.is_grad_enabled():
            self.rank.on_given = None

    def _take(self, first: Tensor) -> None:
        """A wrapped model is about to be trained with this."""
        began = time.thread_time()
        rows = self._rows(first)
        if rows is None:
            self.rank.on_given = None
            return
        writer = self._writer = self._writer or self._begin()
        writer.hand_over(rows)
        self._spent += time.thread_time() - began
        dear = self._spent > FREE_SECONDS + SHARE * (time.monotonic() - self._began)
        if dear or not writer.storing:
            self.rank.on_given = None

    def _begin(self) -> PassWriter:
        flags = PassFlag.GIVEN | PassFlag.ITERABLE | PassFlag.HASHED | PassFlag.GRADIENTS_ON
        site = self.trace.texts.id(sites.user_site())
        seq = self.trace.passes.write(started_ns=time.monotonic_ns(), loop_site=site, dataset_length=-1, flags=flags)
        return PassWriter(self, None, 0, seq, flags, keep=1)

    def _rows(self, first: Tensor) -> array[int] | None:
        """None where they cannot be read."""
        count = len(first) if first.dim() else 0
        usable = type(first) is Tensor and first.device.type == "cpu" and is_readable(first)
        if not usable or not 0 < count <= MOST_ROWS or not _lie_in_one_piece(first):
            return None
        size, apart = first.nbytes // count, first.stride(0) * first.element_size()
        if not size:
            return None
        whole = (count - 1) * apart + size
        held = memoryview((ctypes.c_char * whole).from_address(first.data_ptr())).cast("B")
        read = min(size, BYTES)
        return array("I", [zlib.crc32(held[at : at + read]) for at in (row * apart for row in range(count))])


def _lie_in_one_piece(rows: Tensor) -> bool:
    """Whether the bytes of each row lie one behind the other, as in `tokens[:, :-1]`, where those of all rows do not."""
    wanted = 1
    for length, stride in zip(reversed(rows.shape[1:]), reversed(rows.stride()[1:]), strict=True):
        if length != 1 and stride != wanted:
            return False
        wanted *= length
    return True
