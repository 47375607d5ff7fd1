"""Copies that are no modules: tensors under the names of a module's parameters, with which it is called (`functional_call`).

Target networks and averages in plain dictionaries are used like this. In some steps, the same on every rank, one digest of all
the tensors of the first such call is noted. Nothing is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from distdoctor.probe import sites, wrappers
from distdoctor.probe.compile_guard import skipped, watched
from distdoctor.probe.gradients.context import GradientsContext
from distdoctor.probe.tensors.digests import Digests, finished_all, is_readable, kinds_of
from distdoctor.recording.trace.events import CalledWith
from distdoctor.recording.trace.layout import extend

MOST = 96  # calls that are noted
FIRST, EACH = 16, 8  # the first steps, and every so-manieth one behind them
MOST_ELEMENTS = 1 << 24  # of all tensors of a call


class CalledWiths:
    """Notes them for one rank."""

    def __init__(self, context: GradientsContext) -> None:
        self.context = context
        self._digests: dict[str, Digests] = {}
        self._noted, self._step = 0, -1
        self._seen: set[int] = set()  # sites, in this step

    def install(self) -> None:
        """From now on."""
        called = self.context.guarded(self._called)

        def make(original: Any) -> Any:
            def functional_call(module: Any, *args: Any, **kwargs: Any) -> Any:
                given = args[0] if args else kwargs.get("parameter_and_buffer_dicts")
                if self._noted < MOST and isinstance(given, dict):
                    called(module, given)
                return original(module, *args, **kwargs)

            return skipped(functional_call)

        wrappers.lay(torch.func, "functional_call", make)

    def _called(self, module: nn.Module, given: Mapping[str, Tensor]) -> None:
        step = self.context.step
        if step != self._step:
            self._step = step
            self._seen.clear()
        if not (step < FIRST or step % EACH == 0) or len(given) > 4096:
            return
        if (
            watched() or torch._C._functorch.peek_interpreter_stack() is not None
        ):  # under vmap or grad they are no values
            return
        site = self.context.trace.texts.id(sites.user_site())
        names = [name for name, _ in module.named_parameters()]
        tensors = [given.get(name) for name in names]
        held = [one for one in tensors if isinstance(one, Tensor)]
        if site in self._seen or len(held) < len(names) or not held:
            return
        if (
            any(one.requires_grad or not is_readable(one) for one in held)
            or sum(map(torch.numel, held)) > MOST_ELEMENTS
        ):
            return
        self._seen.add(site)
        self._noted += 1
        name = type(module).__name__
        own = self._digest(name, [one.detach() for one in module.parameters() if is_readable(one)])
        event = CalledWith(name, self._digest(name, held), step, own)
        self.context.trace.note(event, site=site)

    def _digest(self, name: str, tensors: list[Tensor]) -> int:
        digests, value = self._digests.setdefault(name, Digests()), 0
        for one in finished_all(digests.start(tensors)[0], kinds_of(tensors)):
            value = extend(value, one)
        return value >> 1
