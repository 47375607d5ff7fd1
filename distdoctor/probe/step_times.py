"""Where the time of a step goes: waiting for data, in backward, in the optimizer. Two looks at the clock for each, no more.

Nothing here waits for a device: where the work is done on one, these are the times that Python spent, and they say so little
about it that checks leave them alone.
"""

from __future__ import annotations

from time import monotonic_ns
from typing import Any

import torch
import torch.autograd

from distdoctor.probe import wrappers
from distdoctor.probe.context import Rank
from distdoctor.probe.tape import Ring
from distdoctor.probe.unseen import skipped


class StepTimes:
    """Adds up between two steps. `write` is called when an optimizer has stepped."""

    __slots__ = (
        "backward", "backwards", "batches", "data", "earlier_tails", "ended", "forward_ended", "optimizer", "rank", "ring",
        "stepping", "tail", "waited",
    )  # fmt: skip

    def __init__(self, rank: Rank, ring: Ring) -> None:
        self.rank, self.ring = rank, ring
        self.stepping = 0  # since when an optimizer has been stepping
        self.waited = 0  # of rank.waited_ns, what belongs to steps before
        self._reset()

    def _reset(self) -> None:
        self.data = self.batches = self.backward = self.backwards = self.optimizer = 0
        self.forward_ended = self.ended = self.tail = self.earlier_tails = 0

    def install(self) -> None:
        """Lay the wrappers around `next` of DataLoaders and around `backward`."""
        from torch.utils.data import dataloader

        wrappers.lay(dataloader._BaseDataLoaderIter, "__next__", self._around_next)
        wrappers.lay(torch.autograd, "backward", self._around_backward)

    def watch_optimizers(self) -> None:
        """Note when an optimizer begins to step. Called last of all streams: what theirs do there is not the optimizer's time."""
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        def begins(optimizer: Any, args: Any, kwargs: Any) -> None:
            self.stepping = monotonic_ns()

        register_optimizer_step_pre_hook(skipped(begins))

    def stepped(self) -> None:
        """An optimizer has stepped."""
        if self.stepping:
            self.optimizer += monotonic_ns() - self.stepping
            self.stepping = 0

    def write(self, at_ns: int, step: int) -> None:
        """The step `step` of this rank is over: write it down, and begin anew."""
        self.ring.write(
            at_ns, step, self.data, self.backward, self.optimizer, self.forward_ended, self.ended,
            self.rank.waited_ns - self.waited, self.earlier_tails, self.batches, self.backwards,
        )  # fmt: skip
        self.waited = self.rank.waited_ns
        self._reset()

    def _around_next(self, original: Any) -> Any:
        gradients_on = torch.is_grad_enabled

        def __next__(iterator: Any) -> Any:
            began = monotonic_ns()
            batch = original(iterator)
            if gradients_on():
                self.data += monotonic_ns() - began
                self.batches += 1
            return batch

        return skipped(__next__)

    def _around_backward(self, original: Any) -> Any:
        inside = torch._C._current_graph_task_id

        def backward(*args: Any, **kwargs: Any) -> Any:
            if inside() != -1:  # a part of the pass that recomputes activations
                return original(*args, **kwargs)
            began = monotonic_ns()
            result = original(*args, **kwargs)
            self.ended = ended = monotonic_ns()
            self.forward_ended = began
            self.backward += ended - began
            self.backwards += 1
            self.earlier_tails += self.tail
            issued = self.rank.native_ns
            self.tail = ended - issued if issued > began else 0
            return result

        return skipped(backward)
