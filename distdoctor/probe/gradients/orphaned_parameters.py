"""Parameters that get gradients and that no optimizer holds: built before the model was wrapped, extended or unfrozen.

A parameter that somebody changes by hand is no orphan: the bits have to stay the same over several steps.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.optim.optimizer import Optimizer

from distdoctor.probe import sites, wrappers
from distdoctor.probe.gradients.context import GradientsContext
from distdoctor.probe.tensors.digests import Digests, Reading, bytes_of, is_readable, local
from distdoctor.probe.tensors.module_trees import parameters_of
from distdoctor.recording.trace.events import Orphaned

LOOKS = 4  # of the first optimizer; what stays the same from the first to the last is not trained
NAMES = 64  # that are written down


@dataclass
class Built:
    """Where an optimizer got its last group of parameters, and what was trainable then."""

    site: int
    trainable: dict[int, weakref.ref[Tensor]]


class OrphanWatch:
    """Knows every optimizer from its construction on, and looks for parameters that none of them holds."""

    def __init__(self, context: GradientsContext) -> None:
        self.context = context
        self._built: weakref.WeakKeyDictionary[Optimizer, Built] = weakref.WeakKeyDictionary()
        self._known: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._digests = Digests()
        self._looks = 0
        self._suspects: list[weakref.ref[Tensor]] = []
        self._readings: list[Reading] = []

    def install(self) -> None:
        """Hear of every group of parameters that an optimizer takes in; the constructor of each gives it some."""
        wrappers.lay(Optimizer, "add_param_group", self._around_add)

    def _around_add(self, original: Any) -> Any:
        @self.context.guarded
        def added(optimizer: Optimizer) -> None:
            known = {id(p): weakref.ref(p) for _, p in self._everything() if p.requires_grad}
            self._built[optimizer] = Built(self.context.trace.texts.id(sites.user_site()), known)
            self._known.add(optimizer)

        def add_param_group(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(optimizer, *args, **kwargs)
            added(optimizer)
            return result

        return add_param_group

    def look(self, optimizer: Optimizer, number: int) -> None:
        """The optimizer of this number is about to step."""
        self._known.add(optimizer)
        if number != 1 or self._looks >= LOOKS:
            return
        self._looks += 1
        if self._looks == 1:
            held = {id(p) for one in self._known for group in one.param_groups for p in group["params"]}
            everything = list(self._everything())
            self._suspects = [weakref.ref(p) for _, p in everything if id(p) not in held and _trains(p)]
        suspects = [p for ref in self._suspects if (p := ref()) is not None]
        if not suspects or len(suspects) < len(self._suspects):
            self._suspects = []
            return
        self._readings.append(self._digests.start(suspects)[0])
        if self._looks == LOOKS:
            self._judge(optimizer, suspects)

    def _judge(self, optimizer: Optimizer, suspects: list[Tensor]) -> None:
        # The newest reading may still be under way on a device; the ones before tell enough.
        readings = [reading.values() for reading in self._readings if reading.ready()]
        self._readings = []
        if len(readings) < LOOKS - 1:
            return
        held = {id(p) for one in self._known for group in one.param_groups for p in group["params"]}
        same = [len({values[number] for values in readings}) == 1 for number in range(len(suspects))]
        still = [p for p, kept in zip(suspects, same, strict=True) if kept and id(p) not in held and _trains(p)]
        self._tell([p for p in still if self._came_later(p)], optimizer, later=True)
        # Where others are written by hand, as from copies that the optimizer holds, these may be so, too, in other steps.
        if all(same):
            self._tell([p for p in still if not self._came_later(p)], optimizer, later=False)

    def _tell(self, orphans: list[Tensor], optimizer: Optimizer, *, later: bool) -> None:
        if not orphans:
            return
        inside = {id(p) for _, p in self._everything()}
        own = [p for group in optimizer.param_groups for p in group["params"]]
        stale = sum(p.grad is None and id(p) not in inside for p in own)
        names = {id(p): name for name, p in self._everything()}
        built = self._built.get(optimizer)
        named = tuple(names.get(id(p), "") for p in orphans[:NAMES])
        nbytes = sum(bytes_of(local(p)) for p in orphans)
        told = Orphaned(named, later, stale, len(own), len(orphans), nbytes)
        self.context.trace.note(told, site=built.site if built is not None else 0)

    def _came_later(self, parameter: Tensor) -> bool:
        """Whether it was not there, or not trainable, when any of the optimizers was built."""
        seen = (built.trainable.get(id(parameter)) for built in self._built.values())
        return not any(ref is not None and ref() is parameter for ref in seen)

    def _everything(self) -> Any:
        for root in self.context.trees.roots():
            for held, parameter in parameters_of(root):
                yield held.name, parameter


def _trains(parameter: Tensor) -> bool:
    """Whether it has a gradient; on the CPU, one that is not all zeros."""
    grad = parameter.grad
    if not (parameter.requires_grad and parameter.is_leaf) or grad is None or not is_readable(parameter):
        return False
    inner = local(grad)
    return inner.device.type != "cpu" or not is_readable(grad) or bool(inner.detach().any())
