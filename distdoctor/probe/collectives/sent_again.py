"""What a rank broadcasts again and again without having written to it: the same tensor, with the same bits, from one line.

A broadcast copies what its root holds. A flat vector of weights that was put together once is sent as it was then, however far
the model has been trained since. Looked at once in a step, on the CPU alone: a few elements, about 10 us.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass

import torch
from torch import Tensor

from distdoctor.probe.context import Rank
from distdoctor.probe.interruptions import hand_on
from distdoctor.probe.writer import TraceWriter
from distdoctor.recording.trace.events import SentUnchanged

MOST_LINES = 32
SAMPLED = 64  # elements
LEAST_ELEMENTS = 64  # numbers that steer a job are no weights
FEWEST = 4  # times that it is sent


@dataclass
class Sent:
    """What a line has sent last."""

    tensor: weakref.ref[Tensor]
    values: tuple[float, ...]
    step: int
    times: int = 1
    told: bool = False


class SentAgain:
    """By line."""

    def __init__(self, rank: Rank, trace: TraceWriter) -> None:
        self.rank, self.trace = rank, trace
        self._lines: dict[int, Sent] = {}
        self._off = False

    def look(self, tensor: Tensor, site: int) -> None:
        """The root of a broadcast is about to send this from a line of the user's. What cannot be read is not looked at again."""
        try:
            if not self._off:
                self._look(tensor, site)
        except Exception as error:
            hand_on(error)
            self._off = True
            self.trace.note_trouble(f"collectives: what is broadcast was left out: {type(error).__name__}: {error}")

    def _look(self, tensor: Tensor, site: int) -> None:
        if tensor.numel() < LEAST_ELEMENTS or tensor.is_cuda or not tensor.is_floating_point():
            return
        last = self._lines.get(site)
        if (last is None and len(self._lines) >= MOST_LINES) or (last is not None and last.step == self.rank.step):
            return
        if torch._C._len_torch_dispatch_stack() or tensor.layout is not torch.strided or not tensor.is_contiguous():
            return
        values = _sampled(tensor)
        if last is None or last.tensor() is not tensor or last.values != values:
            if last is not None and last.told:  # it was not to stay
                self.trace.note(SentUnchanged(0, 0), site=site)
            if not set(values) <= {0.0, 1.0}:  # a mask
                self._lines[site] = Sent(weakref.ref(tensor), values, self.rank.step)
            return
        last.step, last.times = self.rank.step, last.times + 1
        if last.times >= FEWEST and not last.times & (last.times - 1):
            last.told = True
            self.trace.note(SentUnchanged(tensor.numel(), last.times, last.step), site=site)


def _sampled(tensor: Tensor) -> tuple[float, ...]:
    flat = tensor.detach().view(-1)
    return tuple(flat[:: max(1, flat.numel() // SAMPLED)][:SAMPLED].tolist())
