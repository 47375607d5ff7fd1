"""Which samples a pass hands over, by content: fingerprints of all, thinned to what a few blocks hold."""

from __future__ import annotations

import struct
import time
from array import array

from distdoctor.probe.writer import TraceWriter
from distdoctor.recording.trace import sampled_indices
from distdoctor.recording.trace.layout import BLOCK, BLOCK_INDICES, BlockKind

MOST_BLOCKS = 4  # of the 256 that all passes share
MOST_PASSES = 6  # of one loader
MOST_TIME = 100  # one part in so many of the time of the pass; where that is too little, batches are left out

_COVERS, _INDICES = BLOCK.offsets["covers"], BLOCK.offsets["indices"]
_head = struct.Struct("<QII").pack
_empty = bytes(4 * BLOCK_INDICES)


class StreamRows:
    """Those of one pass. As they grow, ever fewer are kept, the same ones on every rank: see `sampled_indices`."""

    def __init__(self, trace: TraceWriter, pass_seq: int) -> None:
        self.trace, self.pass_seq = trace, pass_seq
        self.kept, self.one_in = array("I"), 1
        self.blocks: list[int] = []
        self.began_ns, self.spent_ns = time.monotonic_ns(), 0

    def wanted(self, began_ns: int) -> bool:
        """Whether there is time for one more batch: what looking took so far is little beside what the pass took."""
        return len(self.kept) < BLOCK_INDICES or self.spent_ns * MOST_TIME < began_ns - self.began_ns

    def add(self, rows: array[int], began_ns: int) -> None:
        """The fingerprints of one more batch, of which reading began then."""
        written = len(self.kept)
        self.kept.extend(sampled_indices.kept(rows, self.one_in))
        if len(self.kept) > MOST_BLOCKS * BLOCK_INDICES:
            while len(self.kept) > MOST_BLOCKS * BLOCK_INDICES // 2 and self.one_in < sampled_indices.LARGEST:
                self.one_in *= 2
                self.kept = sampled_indices.kept(self.kept, self.one_in)
            del self.kept[MOST_BLOCKS * BLOCK_INDICES :]  # samples that are all the same are kept all, or none
            written = 0
            for number, seq in enumerate(self.blocks):
                self.trace.blocks.overlay(seq, _COVERS, _head(self.one_in, number, 0))
        for number in range(written // BLOCK_INDICES, -(-len(self.kept) // BLOCK_INDICES)):
            self._write(number)
        self.spent_ns += time.monotonic_ns() - began_ns

    def _write(self, number: int) -> None:
        """One block anew. The head is written last: it makes the fingerprints valid."""
        words = self.kept[number * BLOCK_INDICES : (number + 1) * BLOCK_INDICES]
        blocks = self.trace.blocks
        if number == len(self.blocks):
            self.blocks.append(
                blocks.write(pass_seq=self.pass_seq, block_number=number, kind=BlockKind.ROWS, indices=_empty)
            )
        seq = self.blocks[number]
        blocks.overlay(seq, _INDICES, words.tobytes())
        blocks.overlay(seq, _COVERS, _head(self.one_in, number, len(words)))
