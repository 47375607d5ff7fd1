"""Which lines make Python wait for the device in every step: `.item()`, `.cpu()`, `print(loss)`, `torch.cuda.synchronize()`.

For a few steps these are wrapped, and then given back: outside of that window nothing is paid. Only calls from the user's own
line count; what torch does inside (GradScaler asks whether gradients overflowed) is not the user's to change. Without CUDA, and
where torch.compile is at work, nothing is wrapped at all.
"""

from __future__ import annotations

import sys
from time import monotonic_ns
from types import FrameType
from typing import Any

import torch

from distdoctor.probe import sites, wrappers
from distdoctor.probe.compile_guard import skipped
from distdoctor.probe.context import Rank
from distdoctor.recording.trace.events import DeviceWait

FIRST, STEPS = 8, 8  # the window: after warm-up, and long enough to see what comes every few steps
METHODS = ("item", "cpu", "tolist", "__float__", "__int__", "__bool__", "__repr__", "__format__")
MOST = 16  # lines


class DeviceWaits:
    """Counts while its window is open."""

    def __init__(self, rank: Rank) -> None:
        self.rank = rank
        self.counts: dict[tuple[int, str], list[int]] = {}  # (text id of the line, by what) -> [times, nanoseconds]
        self.closers: list[Any] = []
        self.until = 0

    def stepped(self, step: int) -> None:
        """An optimizer has made its step number `step`."""
        if self.until:
            if step >= self.until:
                self._close()
        elif step == FIRST and self._may_open():
            self.until = step + STEPS
            self.closers = [wrappers.lay_for_a_while(torch.Tensor, name, self._around(name)) for name in METHODS]
            self.closers.append(wrappers.lay_for_a_while(torch.cuda, "synchronize", self._around("synchronize")))

    def _may_open(self) -> bool:
        if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            return False
        dynamo = sys.modules.get("torch._dynamo.utils")
        return not (dynamo is not None and sum(dynamo.counters["frames"].values()))

    def _around(self, name: str) -> Any:
        waited = self.rank.guarded(self._waited)

        def make(original: Any) -> Any:
            def wait(*args: Any, **kwargs: Any) -> Any:
                began = monotonic_ns()
                result = original(*args, **kwargs)
                waited(name, args, sys._getframe(1), monotonic_ns() - began)
                return result

            return skipped(wait)

        return make

    def _waited(self, name: str, args: tuple[Any, ...], caller: FrameType, nanoseconds: int) -> None:
        trace = self.rank.trace
        if trace is None or not sites.is_users(caller):
            return
        if args and isinstance(args[0], torch.Tensor) and not args[0].is_cuda:
            return
        key = (trace.texts.id(sites.site_of(caller)), name)
        if key in self.counts or len(self.counts) < MOST:
            count = self.counts.setdefault(key, [0, 0])
            count[0] += 1
            count[1] += nanoseconds

    def _close(self) -> None:
        for close in self.closers:
            close()
        self.closers, self.until = [], 1 << 62
        trace = self.rank.trace
        if trace is None:
            return
        for (site, name), (times, nanoseconds) in self.counts.items():
            trace.note(DeviceWait(name, times, STEPS, nanoseconds), site=site)
        self.counts.clear()
