"""Modules that hold buffers and no parameters, beside what is trained: running normalisers of what the model is fed, losses.

No optimizer and no wrapper knows them. They make themselves known when they register a buffer. Whether one of them changes what
is trained on is waited for in the first steps, and in those after it was taken in.
"""

from __future__ import annotations

import weakref
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from distdoctor.probe import sites, wrappers
from distdoctor.probe.compile_guard import compiles, not_traced
from distdoctor.probe.gradients.buffers import Buffers
from distdoctor.probe.gradients.context import GradientsContext
from distdoctor.probe.gradients.plain_objects import PlainObjects
from distdoctor.probe.tensors.module_trees import buffers_of
from distdoctor.recording.trace.events import BesideUsed

MOST = 8  # of such modules
LARGEST = 1 << 16  # elements of one: a statistic, no replay buffer
AMBUSHES = 64  # steps in which the forward of one is waited for: what plays between updates comes once in many
PATIENCE = 16  # steps of other optimizers, after which the one by which steps are counted has stopped


class Lead:
    """The optimizer behind whose steps is looked at what no optimizer holds: the first one, while it goes on."""

    def __init__(self) -> None:
        self.number = 1
        self.step = 0  # counted on when another one takes over
        self._from = self._updates = 0

    def takes(self, number: int, step: int, updates: int) -> bool:
        """Whether it is this one that has made its `step`, after so many `updates` of all."""
        if number != self.number and updates - self._updates > PATIENCE:
            self.number, self._from = number, max(0, self.step + 1 - step)
        if number != self.number:
            return False
        self._updates, self.step = updates, self._from + step
        return True


class Beside:
    """Those of this process. Held weakly."""

    def __init__(self, context: GradientsContext) -> None:
        self.context = context
        self._made: weakref.WeakValueDictionary[int, nn.Module] = weakref.WeakValueDictionary()  # since the last look
        self._chosen: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._names: list[str] = []  # of those that were ever chosen
        self._unused: dict[int, str] = {}  # those that have not been used yet, by `id`
        self._seen: set[int] = set()  # of these, what gave something while gradients were off
        self._buffers: list[Buffers] = []
        self._plain = PlainObjects(context)
        self.lead = Lead()
        self._ambush: Any = None
        self._ambushes = 0

    def install(self) -> None:
        """Hear of buffers that are registered. To be set anew in each step is none of that, and costs nothing."""
        wrappers.listen(nn.Module, "register_buffer", before=self.context.guarded(self._registers))

    def _registers(self, module: nn.Module) -> None:
        if id(module) not in self._made and len(self._names) < MOST:
            self._made[id(module)] = module

    def look(self) -> None:
        """Digests of their buffers, and of what plain objects hold, behind this step."""
        if not self._buffers or self._made:
            self._choose()
        self._plain.search()
        for buffers in (*self._buffers, self._plain):
            started = buffers.start()
            if started is not None:
                self.context.later(partial(buffers.write, self.lead.step, started), started[0])

    def _choose(self) -> None:
        """Take in what was made since the last look."""
        roots = self.context.trees.roots()
        inner = {id(one) for root in roots for one in root.modules() if one is not root}
        every = {id(one): one for one in (*self._made.values(), *roots) if id(one) not in inner}
        chosen = [one for one in every.values() if one not in self._chosen and _is_wanted(one)]
        del chosen[MOST - len(self._names) :]
        self._made.clear()
        if not chosen and self._buffers:
            return
        names: list[str] = []
        for kind in (type(one).__name__ for one in chosen):
            same = sum(name.partition(" ")[0] == kind for name in (*self._names, *names))
            names.append(f"{kind} {same + 1}" if same else kind)
        self._chosen.update(chosen)
        self._names += names
        self._unused |= {id(one): name for one, name in zip(chosen, names, strict=True)}
        self._ambushes = 0
        self._buffers.append(Buffers(self.context, 0, chosen, [f"{name}." for name in names]))

    def after_step(self) -> None:
        """Lie in wait for their forwards until the next step is over."""
        if self._ambush is not None:
            self._ambush.remove()
            self._ambush = None
        if self._unused and self._ambushes < AMBUSHES and not compiles():
            self._ambushes += 1
            hook = not_traced(self.context.guarded(self._computes))
            self._ambush = nn.modules.module.register_module_forward_hook(hook)

    def _computes(self, module: nn.Module, inputs: Any, output: Any) -> None:
        off = not torch.is_grad_enabled()
        if id(module) not in self._unused or (off and (id(module) in self._seen or not module.training)):
            return
        given = inputs[0] if isinstance(inputs, tuple) and inputs else None
        if not isinstance(given, Tensor) or not isinstance(output, Tensor):
            return
        loss = output.requires_grad and output.numel() == 1
        if loss or (given.shape == output.shape and output.dim()):
            trace, name = self.context.trace, self._unused[id(module)]
            trace.note(BesideUsed(name, self.context.step, loss, off), site=trace.texts.id(sites.user_site()))
            self._seen.add(id(module))
            if not off:
                del self._unused[id(module)]


def _is_wanted(module: nn.Module) -> bool:
    if isinstance(module, torch.jit.ScriptModule) or next(module.parameters(), None) is not None:
        return False
    buffers = [buffer for _, buffer in buffers_of(module)]
    return not any(map(is_lazy, buffers)) and 0 < sum(buffer.numel() for buffer in buffers) <= LARGEST
