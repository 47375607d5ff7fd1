"""Modules that hold buffers and no parameters, beside what is trained: running normalisers of what the model is fed.

No optimizer and no wrapper knows them. They make themselves known when they register a buffer, until the first step: what is made
later is not looked at. Whether one of them changes what is trained on is waited for in the first steps.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from distdoctor.probe import sites
from distdoctor.probe.compile_guard import not_traced
from distdoctor.probe.gradients.buffers import Buffers
from distdoctor.probe.gradients.context import GradientsContext
from distdoctor.probe.gradients.copies import compiles
from distdoctor.probe.tensors.module_trees import buffers_of
from distdoctor.recording.trace.events import BesideUsed

MOST = 8  # of such modules
LARGEST = 1 << 16  # elements of one: a statistic, no replay buffer
AMBUSHES = 3  # first steps in which the forward of one is waited for


class Beside:
    """Those of this process. Held weakly."""

    def __init__(self, context: GradientsContext) -> None:
        self.context = context
        self._made: weakref.WeakValueDictionary[int, nn.Module] = weakref.WeakValueDictionary()
        self._names: dict[int, str] = {}  # those that were chosen and have not been used yet, by `id`
        self._buffers: Buffers | None = None
        self._hook: Any = None
        self._ambush: Any = None
        self._ambushes = 0

    def install(self) -> None:
        hook = not_traced(self.context.guarded(self._registers))
        self._hook = nn.modules.module.register_module_buffer_registration_hook(hook)

    def _registers(self, module: nn.Module, name: str, buffer: Any) -> None:
        if id(module) not in self._made:
            self._made[id(module)] = module

    def look(self, step: int) -> None:
        """Digests of their buffers behind this step."""
        if self._buffers is None:
            self._buffers = self._choose()
        buffers, started = self._buffers, self._buffers.start()
        if started is not None:
            self.context.later(lambda: buffers.write(step, started), started[0])

    def _choose(self) -> Buffers:
        self._hook.remove()  # a buffer that is set anew in each step costs nothing from now on
        roots = self.context.trees.roots()
        inner = {id(one) for root in roots for one in root.modules() if one is not root}
        every = {id(one): one for one in (*self._made.values(), *roots) if id(one) not in inner}
        chosen = [one for one in every.values() if _is_wanted(one)][:MOST]
        self._made.clear()
        names: list[str] = []
        for kind in (type(one).__name__ for one in chosen):
            same = sum(name.partition(" ")[0] == kind for name in names)
            names.append(f"{kind} {same + 1}" if same else kind)
        self._names = {id(one): name for one, name in zip(chosen, names, strict=True)}
        return Buffers(self.context, 0, chosen, [f"{name}." for name in names])

    def after_step(self) -> None:
        """Lie in wait for their forwards until the next step is over."""
        if self._ambush is not None:
            self._ambush.remove()
            self._ambush = None
        if self._names and self._ambushes < AMBUSHES and not compiles():
            self._ambushes += 1
            hook = not_traced(self.context.guarded(self._computes))
            self._ambush = nn.modules.module.register_module_forward_hook(hook)

    def _computes(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if id(module) not in self._names or not torch.is_grad_enabled():
            return
        given = inputs[0] if isinstance(inputs, tuple) and inputs else None
        if isinstance(given, Tensor) and isinstance(output, Tensor) and given.shape == output.shape and output.dim():
            trace = self.context.trace
            name = self._names.pop(id(module))
            trace.note(BesideUsed(name, self.context.step), site=trace.texts.id(sites.user_site()))


def _is_wanted(module: nn.Module) -> bool:
    if isinstance(module, torch.jit.ScriptModule) or next(module.parameters(), None) is not None:
        return False
    buffers = [buffer for _, buffer in buffers_of(module)]
    return not any(map(is_lazy, buffers)) and 0 < sum(buffer.numel() for buffer in buffers) <= LARGEST
