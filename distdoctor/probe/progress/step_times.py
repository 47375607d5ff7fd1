"""Where the time of a step goes: waiting for data, in backward, in the optimizer. Two looks at the clock for each, no more.

Nothing here waits for a device: where the work is done on one, these are the times that Python spent, and they say so little
about it that checks leave them alone.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic_ns
from typing import Any, TypeVar

import torch
import torch.autograd

from distdoctor.probe import optimizer_steps, wrappers
from distdoctor.probe.closures import Arguments, after_first_return
from distdoctor.probe.compile_guard import skipped
from distdoctor.probe.context import Rank
from distdoctor.probe.elements import largest_in
from distdoctor.probe.writer import Ring

Function = TypeVar("Function", bound=Callable[..., Any])
_recorded = torch._C._autograd._get_sequence_nr  # how many operations autograd has recorded so far, on this thread


class StepTimer:
    """Adds up between two steps. `write` is called when an optimizer has stepped."""

    __slots__ = (
        "backward",
        "backwards",
        "batches",
        "began",
        "collected",
        "data",
        "done_before",
        "earlier_tails",
        "elements",
        "ended",
        "forward_began",
        "forward_ended",
        "optimizer",
        "rank",
        "recorded",
        "ring",
        "stepping",
        "tail",
        "waited",
    )  # fmt: skip

    def __init__(self, rank: Rank, ring: Ring) -> None:
        self.rank, self.ring = rank, ring
        self.began = 0  # when the batch was asked for, or backward began
        self.stepping = 0  # since when an optimizer has been stepping
        self.done_before = 0  # of `backward`, what was over by then
        self.waited = 0  # of rank.waited_ns, what belongs to steps before
        self.collected = 0  # of rank.collected_ns, likewise
        self.recorded = 0  # by autograd when the step before was over
        self._reset()

    def _reset(self) -> None:
        self.data = self.batches = self.elements = self.backward = self.backwards = self.optimizer = 0
        self.forward_began = self.forward_ended = self.ended = self.tail = self.earlier_tails = 0

    def install(self) -> None:
        """Lay the wrappers around `next` of DataLoaders and around `backward`."""
        from torch.utils.data import dataloader

        asks, has, begins, ends = self.listeners()
        wrappers.listen(
            dataloader._BaseDataLoaderIter,
            "__next__",
            before=asks,
            after=has,
            given=self._callback(self._given),
        )
        wrappers.listen(torch.autograd, "backward", before=begins, after=ends)
        self.rank.on_idle = self._callback(lambda: self._idle(monotonic_ns()))

    def watch_optimizers(self) -> None:
        """Note when an optimizer begins to step. Called last of all streams: what theirs do there is not the optimizer's time."""

        def begins_now() -> None:
            self.stepping, self.done_before = monotonic_ns(), self.backward

        def begins(optimizer: Any, args: Any, kwargs: Any) -> Arguments | None:
            following = after_first_return(args, kwargs, self._callback(begins_now))
            if following is None:
                begins_now()
            return following

        optimizer_steps.before_each(self._callback, begins)

    def stepped(self) -> None:
        """An optimizer has stepped. Backward passes of a closure that it called again are not its own time."""
        if self.stepping:
            self.optimizer += monotonic_ns() - self.stepping - (self.backward - self.done_before)
            self.stepping = 0

    def write(self, at_ns: int, step: int) -> None:
        """The step `step` of this rank is over: write it down, and begin anew."""
        self.ring.write(
            at_ns=at_ns,
            step=step,
            data_ns=self.data,
            backward_ns=self.backward,
            optimizer_ns=self.optimizer,
            forward_ended_ns=self.forward_ended,
            backward_ended_ns=self.ended,
            waited_ns=self.rank.waited_ns - self.waited,
            earlier_tails_ns=self.earlier_tails,
            collected_ns=self.rank.collected_ns - self.collected,
            forward_began_ns=self.forward_began,
            elements=self.rank.forwarded or self.elements,
            batches=self.batches,
            backwards=self.backwards,
        )
        self.waited, self.collected, self.rank.forwarded = self.rank.waited_ns, self.rank.collected_ns, 0
        self._reset()
        self.recorded = _recorded()

    def _idle(self, at_ns: int) -> None:
        """What the step has spent until now is none of its forward, if autograd has recorded nothing of one."""
        if _recorded() == self.recorded:
            self.forward_began = at_ns - self.data

    def _given(self, batch: Any) -> None:
        """A DataLoader gave this batch."""
        if torch.is_grad_enabled():
            self.elements += largest_in(batch)

    def listeners(self) -> tuple[Callable[[Any], None], Callable[[], None], Callable[[Any], None], Callable[[], None]]:
        """What is done ahead of the next batch and when it is there, ahead of backward and when it has ended."""
        gradients_on, inside = torch.is_grad_enabled, torch._C._current_graph_task_id

        def batch_asked_for(iterator: Any) -> None:
            self.began = began = monotonic_ns()
            self._idle(began)

        def batch_is_there() -> None:
            if gradients_on():
                self.data += monotonic_ns() - self.began
                self.batches += 1

        def backward_begins(tensors: Any) -> None:
            if inside() == -1:  # else a part of the pass, that recomputes activations
                self.began = monotonic_ns()

        def backward_has_ended() -> None:
            if inside() != -1:
                return
            self.ended = ended = monotonic_ns()
            self.forward_ended = began = self.began
            self.backward += ended - began
            self.backwards += 1
            self.earlier_tails += self.tail
            issued = self.rank.native_ns
            self.tail = ended - issued if issued > began else 0

        return (
            self._callback(batch_asked_for),
            self._callback(batch_is_there),
            self._callback(backward_begins),
            self._callback(backward_has_ended),
        )

    def _callback(self, function: Function) -> Function:
        """For the host to call: it raises nothing, and neither it nor what it guards is compiled."""
        return skipped(self.rank.guarded(skipped(function)))
