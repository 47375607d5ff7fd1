"""One pass over one loader, while it runs: what was handed over goes straight into the trace, batch by batch."""

from __future__ import annotations

import struct
import time
import weakref
import zlib
from array import array
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import torch

from distdoctor.probe.interruptions import hand_on
from distdoctor.probe.samples.bitmap_writer import BitmapWriter
from distdoctor.probe.samples.stream_rows import StreamRows
from distdoctor.probe.writer import TraceWriter
from distdoctor.recording.trace import sampled_indices
from distdoctor.recording.trace.layout import BLOCK, BLOCK_INDICES, PASS, BlockKind, PassFlag

MOST_BLOCKS = 64  # of a pass of unknown length; then only numbers are kept

_DRAWN, _BATCHES, _AHEAD = (PASS.offsets[name] // 8 for name in ("drawn", "batches", "ahead"))
_ENDED = PASS.offsets["ended_ns"]
_FLAGS = PASS.offsets["flags"]
_INDICES = BLOCK.offsets["indices"]
_FIRST_INDEX = _INDICES // 4
_COVERS = BLOCK.offsets["covers"]
_BLOCK_NUMBER = BLOCK.offsets["block_number"]
_one_word = struct.Struct("<I").pack
_two_words = struct.Struct("<II").pack
_kept_head = struct.Struct("<QII").pack
_no_indices = bytes(4 * BLOCK_INDICES)
_LOW = 0xFFFFFFFF


class StepClock(Protocol):
    """Who counts the optimizer steps: how many of any optimizer, and the number of the one that stepped last."""

    trace: TraceWriter
    steps: int
    optimizer: int


class PassWriter:
    """The record of a pass and its blocks. `draw` and `exhausted` are called as torch asks the sampler for batches."""

    def __init__(
        self,
        stream: StepClock,
        source: Any,
        prefetch: int,
        seq: int,
        flags: PassFlag,
        keep: int,
        new_set: Callable[[int], BitmapWriter | None] | None = None,
        around: PassWriter | None = None,
    ) -> None:
        """`new_set`: makes the set of all samples drawn, for a pass of which the blocks keep only a part. `around`: the pass that
        is under way."""
        self.new_set = new_set if keep > 1 else None
        self.drawn_set: BitmapWriter | None = None
        self.source = source  # the sampler's iterator, by which a new pass over the same loader is told from this one
        self.stream, self.trace = stream, stream.trace
        self.seq, self.keep = seq, keep
        self.record = stream.trace.passes.window(seq).cast("Q")
        self.outer = weakref.ref(around) if around is not None else None
        self.evaluates = bool(flags & PassFlag.EVAL_MODE or not flags & PassFlag.GRADIENTS_ON)  # as it began
        self.flags = int(flags)  # no PassFlag: its operators cost more than all else that a batch costs
        self.counts = not flags & PassFlag.ITERABLE
        self.plain = True  # indices are numbers, and those of the data set itself
        self.translate: list[Any] = []
        self.prefetch = prefetch
        self.behind = 0  # batches that a library around the loader keeps for itself
        self.draws = self.drawn = self.batches = self.ahead = 0
        self.waiting: deque[array[int]] = deque()  # drawn for the workers, not handed over yet
        self.rows: StreamRows | None = None  # by content, where indices do not tell
        self.step, self.optimizer = stream.steps, 0
        self.ended = False
        self.storing = True
        self.current = array("I")  # what the RAW block at work holds
        self.fill = BLOCK_INDICES  # of the RAW block at work; there is none yet
        self.block: memoryview = memoryview(b"")
        self.block_seq = self.block_number = self.blocks = 0
        self.kept_seq = self.kept_fill = self.kept_number = 0

    def translated_by(self, translate: list[Any]) -> None:
        """Indices are those of a Subset; `translate` leads from them to those of the data set below."""
        self.translate = translate
        self.plain = not translate

    def draw(self, index: Any) -> None:
        """A batch was drawn from the sampler."""
        if self.plain and type(index) is list:
            try:
                indices = array("I", index)
            except (TypeError, OverflowError, ValueError) as error:
                hand_on(error)
                indices = self._odd(index)
        else:
            indices = self._numbers(index)
        prefetch = self.prefetch + self.behind
        if not prefetch:
            self.hand_over(indices)
            return
        self.draws += 1
        self.waiting.append(indices)
        self.ahead += len(indices)
        if self.draws > prefetch:
            self._next_waiting()
        elif self.record[0] == self.seq:
            self.record[_AHEAD] = self.ahead

    def streamed(self, fingerprint: int | None) -> None:
        """A batch of iterable data was handed over; its first sample has this fingerprint."""
        if fingerprint is None and self.storing:
            self._cut()
        self.hand_over(array("I", [fingerprint or 0]))

    def over(self) -> None:
        """Iterable data have come to their end."""
        if not self.ended:
            self._end()

    def exhausted(self) -> None:
        """The sampler had no further batch. With workers torch asks once more for each batch that it hands over."""
        if self.ended:
            return
        self.draws += 1
        prefetch = self.prefetch + self.behind
        if self.draws > prefetch and self.waiting:
            self._next_waiting()
        if self.behind and self.draws >= prefetch and len(self.waiting) <= self.behind:
            while self.waiting:  # torch has handed over all it had, and is not asked again
                self._next_waiting()
        if not self.waiting:
            self._end()

    def note_step(self) -> None:
        """Remember whether an optimizer has stepped since the pass began: then it trains."""
        if self.stream.steps != self.step and not self.optimizer:
            self.optimizer = self.stream.optimizer
            self._mark(PassFlag.STEPPED)

    def _end(self) -> None:
        self.ended = True
        self.source = self.new_set = self.drawn_set = self.rows = None
        self.trace.passes.patch(self.seq, _ENDED, time.monotonic_ns())
        self.note_step()

    def _mark(self, flag: PassFlag) -> None:
        self.flags |= int(flag)
        self.trace.passes.overlay(self.seq, _FLAGS, _two_words(self.flags, self.optimizer))

    def _next_waiting(self) -> None:
        indices = self.waiting.popleft()
        self.ahead -= len(indices)
        self.hand_over(indices)

    def hand_over(self, indices: array[int]) -> None:
        count, fill = len(indices), self.fill
        self.drawn += count
        self.batches += 1
        end = fill + count
        if end <= BLOCK_INDICES and self.block[0] == self.block_seq & _LOW:
            self.block[_FIRST_INDEX + fill : _FIRST_INDEX + end] = indices
            self.current.extend(indices)
            self.fill = end
        elif self.storing:
            self._store(indices)
        record = self.record
        if record[0] == self.seq:  # else the ring has given its place to a younger pass
            record[_BATCHES] = self.batches
            record[_AHEAD] = self.ahead
            record[_DRAWN] = self.drawn
        if not self.optimizer and self.stream.steps != self.step:
            self.note_step()

    # --- indices as 32-bit numbers ----------------------------------------------------------------------------------------

    def _numbers(self, index: Any) -> array[int]:
        kind = type(index)
        if kind is not list and kind is not tuple:
            index = _as_list(index)
        if self.flags & PassFlag.HASHED:
            return self._hashed(index)
        try:
            for getitem in self.translate:
                index = list(map(getitem, index))
            return array("I", index)
        except (TypeError, OverflowError, ValueError) as error:
            hand_on(error)
            return self._odd(index)

    def _odd(self, index: Any) -> array[int]:
        """Indices that are no numbers below 2^32: keys, tuples, negative ones. Their digests serve as well."""
        self.plain = False
        if self.drawn or self.waiting:
            self._cut()
            return array("I", bytes(4 * len(index)))
        self._mark(PassFlag.HASHED)
        return self._hashed(index)

    def _hashed(self, index: Any) -> array[int]:
        words = [repr(item) if type(item) in (str, tuple, int, bytes) else "" for item in index]
        if not all(words):
            self._cut()
        return array("I", [zlib.crc32(word.encode("utf-8", "replace")) for word in words])

    # --- storing -----------------------------------------------------------------------------------------------------------

    def _cut(self) -> None:
        """From here on only numbers are kept."""
        self.storing = False
        self.new_set = self.drawn_set = None
        self.fill = BLOCK_INDICES + 1  # no batch fits, not even an empty one
        self._mark(PassFlag.TRUNCATED)

    def _store(self, indices: array[int]) -> None:
        """The long way round: a block is full, or there is none, or its place was given away."""
        while indices and self.storing:
            if self.fill >= BLOCK_INDICES:
                self._turn()
            elif self.block[0] != self.block_seq & _LOW:
                self._open_block()
            if not self.storing:
                return
            taken = indices[: BLOCK_INDICES - self.fill]
            start = _FIRST_INDEX + self.fill
            self.block[start : start + len(taken)] = taken
            self.current.extend(taken)
            self.fill += len(taken)
            indices = indices[len(taken) :]

    def _turn(self) -> None:
        """The RAW block at work is full, or there is none yet: file what it holds and open the next one."""
        if self.block_seq:
            if self.keep > 1:
                self._file_current()
            self.block_number += 1
        self.current = array("I")
        self.fill = 0
        if self.keep > 1 and self.block_number > 1:
            if not self.trace.blocks.overlay(self.block_seq, _BLOCK_NUMBER, _one_word(self.block_number)):
                self._open_block()
        else:
            self._open_block()

    def _open_block(self) -> None:
        """A RAW block, with what `current` holds already."""
        if self.blocks >= MOST_BLOCKS:
            self._cut()
            return
        self.blocks += 1
        held = self.current.tobytes()
        blocks, rest = self.trace.blocks, _no_indices[len(held) :]
        self.block_seq = blocks.write(
            pass_seq=self.seq, block_number=self.block_number, kind=BlockKind.RAW, indices=held + rest
        )
        self.block = blocks.window(self.block_seq).cast("I")

    def _file_current(self) -> None:
        """What the full RAW block holds goes into the set of all draws, and, thinned out, to the KEPT blocks."""
        if self.new_set is not None:
            self.drawn_set, self.new_set = self.new_set(self.seq), None
        if self.drawn_set is not None and not self.drawn_set.add(self.current):
            self.drawn_set = None
        if not self.flags & PassFlag.TRUNCATED:
            self._file(sampled_indices.kept(self.current, self.keep))

    def _file(self, indices: array[int]) -> None:
        """Append what is kept of a full RAW block to the KEPT blocks. The head is written last: it makes the indices valid."""
        covers = (self.block_number + 1) * BLOCK_INDICES
        blocks = self.trace.blocks
        if not self.kept_seq or self.kept_fill + len(indices) > BLOCK_INDICES:
            if self.blocks >= MOST_BLOCKS:
                if self.drawn_set is None:
                    self._cut()
                else:
                    self._mark(PassFlag.TRUNCATED)  # no more of the order; which samples are drawn is still told
                return
            self.blocks += 1
            self.kept_seq = blocks.write(
                pass_seq=self.seq,
                covers=covers,
                block_number=self.kept_number,
                kind=BlockKind.KEPT,
                indices=_no_indices,
            )
            self.kept_fill = 0
            self.kept_number += 1
        blocks.overlay(self.kept_seq, _INDICES + 4 * self.kept_fill, indices.tobytes())
        self.kept_fill += len(indices)
        blocks.overlay(self.kept_seq, _COVERS, _kept_head(covers, self.kept_number - 1, self.kept_fill))


def _as_list(index: Any) -> Any:
    """One index, or a batch of them that is no list, as a list."""
    if isinstance(index, torch.Tensor):
        if index.device.type != "cpu":
            return [object()]  # reading it would wait for the device
        return index.tolist() if index.dim() else [index.item()]
    if hasattr(index, "__index__") or isinstance(index, (str, bytes)):
        return [index]
    try:
        return list(index) if hasattr(index, "__len__") else [index]
    except TypeError as error:
        hand_on(error)
        return [index]
