"""What a rank gives to a wrapped model: digests of the first elements, computed where they lie, in steps that are looked at.

Replicas are there to read different data. Where the script makes its batches by itself no loader tells what they are.
"""

from __future__ import annotations

import sys
import time
import zlib
from collections.abc import Callable, Iterator
from ctypes import string_at
from typing import Any, NamedTuple

import torch
from torch import Tensor

from distdoctor.probe import sites, wrappers
from distdoctor.probe.compile_guard import skipped
from distdoctor.probe.gradients.context import GradientsContext
from distdoctor.probe.tensors.digests import Digests, Reading, is_readable, kinds_of
from distdoctor.recording.trace.events import GivenParts
from distdoctor.recording.trace.layout import MASK, extend

LEAVES = 4  # of what the model is given: inputs, masks, and a little more
ELEMENTS = 1024  # of a tensor
DEPTH = 3
MOST_NOTED = 24  # forwards of which each tensor is noted by itself, in the first steps that are looked at
LEAST_ELEMENTS = 4  # of a tensor that is; fewer are settings of the step
# Imported by whoever shards; never by us, it takes more than a second (torch 2.15).
_FSDP2 = "torch.distributed.fsdp._fully_shard._fsdp_state", "FSDPState", "_root_pre_forward"
_FSDP1 = "torch.distributed.fsdp.fully_sharded_data_parallel", "FullyShardedDataParallel", "forward"


class Given(NamedTuple):
    """What a model was given: digests of what lies on the host, dtypes and shapes of all, and what a device is computing."""

    here: list[int]
    kinds: list[int]
    reading: Reading | None

    def digest(self) -> int:
        """One of all, once the device is ready."""
        found = 0
        for word in (*self.here, *self.kinds, *(self.reading.values() if self.reading is not None else ())):
            found = extend(found, word & MASK)
        return found


class Inputs:
    """The newest inputs of this rank's wrapped models, as far as a device has come; no tensor is kept."""

    def __init__(self, context: GradientsContext, wanted: Callable[[], bool]) -> None:
        """`wanted()`: whether the step under way is looked at."""
        self.context, self._wanted = context, wanted
        self._digests = Digests()
        self._latest: tuple[int, Given] | None = None  # and the updates before it
        self._noted = self._place = 0
        self._step = -1
        self.spent = 0.0  # CPU seconds since somebody asked last
        self._waiting = [_FSDP2, _FSDP1]

    def look_for_sharding(self) -> None:
        """Lay the wrappers of FSDP as soon as somebody has imported it."""
        for entry in list(self._waiting):
            module = sys.modules.get(entry[0])
            if module is not None and hasattr(module, entry[1]):
                self._waiting.remove(entry)
                wrappers.lay(getattr(module, entry[1]), entry[2], self._around_forward)

    def _around_forward(self, original: Any) -> Any:
        given = self.context.guarded(self.given)

        def forward(owner: Any, *args: Any, **kwargs: Any) -> Any:
            if torch.is_grad_enabled() and not torch.compiler.is_compiling():
                given(args, kwargs)
            return original(owner, *args, **kwargs)

        return skipped(forward)

    def given(self, *values: Any) -> None:
        """A wrapped model is about to compute with these."""
        on_given = self.context.rank.on_given
        if on_given is not None and (first := next(_leaves(values, DEPTH), None)) is not None:
            on_given(first)
        if not self._wanted():
            return
        began = time.thread_time()
        with torch.no_grad():
            some = [_first(leaf) for leaf in _leaves(values, DEPTH) if is_readable(leaf) and leaf.numel()][:LEAVES]
            away = [leaf for leaf in some if leaf.device.type != "cpu"]
            here = [zlib.crc32(string_at(leaf.data_ptr(), leaf.nbytes)) for leaf in some if leaf.device.type == "cpu"]
            reading = self._digests.start(away)[0] if away else None
            self._latest = (self.context.updates, Given(here, kinds_of(some), reading)) if some else None
            if self._noted < MOST_NOTED and not away:
                self._note(values)
        self.spent += time.thread_time() - began

    def _note(self, values: Any) -> None:
        """Each tensor by itself: one of them may be the same on all ranks although the others are not."""
        self._noted += 1
        self._place = self._place + 1 if self._step == self.context.updates else 0
        self._step = self.context.updates
        parts = [
            leaf
            for leaf in _leaves(values, DEPTH)
            if is_readable(leaf) and leaf.device.type == "cpu" and leaf.numel() >= LEAST_ELEMENTS
        ][:LEAVES]
        firsts = [_first(leaf) for leaf in parts]
        digests = tuple(f"{zlib.crc32(string_at(one.data_ptr(), one.nbytes)):08x}" for one in firsts)
        shapes = tuple(str(list(leaf.shape)) for leaf in parts)
        event = GivenParts(digests, shapes, self.context.updates, self._place)
        self.context.trace.note(event, site=self.context.trace.texts.id(sites.user_site()))

    def taken(self) -> Given | None:
        """Those that the step under way was made with: nothing for a second step with the same ones."""
        latest, self._latest = self._latest, None
        return latest[1] if latest is not None and latest[0] == self.context.updates - 1 else None


def _leaves(value: Any, depth: int) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif depth and isinstance(value, dict):
        for part in list(value.values())[: 2 * LEAVES]:
            yield from _leaves(part, depth - 1)
    elif depth and isinstance(value, (list, tuple)):
        for part in value[: 2 * LEAVES]:
            yield from _leaves(part, depth - 1)


def _first(leaf: Tensor) -> Tensor:
    """The first elements; of the first sample alone where more would have to be copied."""
    leaf = leaf.detach()
    rows = leaf if leaf.is_contiguous() or not leaf.dim() else leaf[:1]
    return rows.reshape(-1)[:ELEMENTS]
