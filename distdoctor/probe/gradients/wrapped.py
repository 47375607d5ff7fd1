"""What DistributedDataParallel does for the gradients, and what goes past it: forwards with and without synchronisation, forwards
of the module inside, parameters that came or changed after wrapping."""

from __future__ import annotations

import weakref
from collections import Counter
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn import parallel
from torch.optim.optimizer import Optimizer

from distdoctor.probe import sites, wrappers
from distdoctor.probe.compile_guard import not_traced, skipped
from distdoctor.probe.elements import largest_in
from distdoctor.probe.gradients.agreement import WrappedModel
from distdoctor.probe.gradients.context import GradientsContext
from distdoctor.probe.gradients.inputs import Inputs
from distdoctor.probe.gradients.non_finite import Origins
from distdoctor.recording.trace.events import Bypassed, Converted, ParameterAdded, TraceEvent, Wrapped
from distdoctor.recording.trace.layout import ranks_of

PATIENCE = 8  # steps of other optimizers after which nobody waits any longer for the forward of one
MOST_NAMES = 512  # of the parameters of one wrapper; the text that they make is cut at 16 KiB
AMBUSHES = 3  # steps in which a forward past the wrapper is waited for; one is enough when there is one


class WrapperWatch:
    """Counts forwards through every DistributedDataParallel of this rank."""

    def __init__(self, context: GradientsContext, origins: Origins, inputs: Inputs) -> None:
        self.context, self.origins, self.inputs = context, origins, inputs
        self._synced: Counter[int] = Counter()  # forwards by the id of the wrapper
        self._unsynced: Counter[int] = Counter()
        self._of: weakref.WeakKeyDictionary[Optimizer, tuple[int, tuple[int, ...]]] = weakref.WeakKeyDictionary()
        self._traced = False  # a compiled forward has run, and nobody has counted it yet
        self._converting = 0
        # Forwards through each wrapper by the end of the optimizer's step before.
        self._forwards_before: weakref.WeakKeyDictionary[Optimizer, dict[int, int]] = weakref.WeakKeyDictionary()
        self._ambushes = 0
        self._ambush: Any = None
        self._awaited: dict[int, tuple[int, Bypassed]] = {}  # by the id of a wrapper: the number of its event, and that
        self._ambush_of = self._since = 0  # id of the optimizer whose step found no forward, and steps of any since
        self._added: set[str] = set()

    def install(self) -> None:
        """Lay the wrappers around torch's own class, and around moving and casting modules."""
        wrappers.lay(parallel.DistributedDataParallel, "__init__", self._around_init)
        wrappers.lay(parallel.DistributedDataParallel, "forward", self._around_forward)
        wrappers.lay(nn.Module, "_apply", self._around_apply)
        self.context.trees.registered = self._registered

    def _around_init(self, original: Any) -> Any:
        @self.context.guarded
        def made(wrapper: nn.Module) -> None:
            self._note_wrapper(wrapper, sites.user_site())

        def __init__(wrapper: Any, *args: Any, **kwargs: Any) -> None:
            original(wrapper, *args, **kwargs)
            made(wrapper)

        return __init__

    def take_in(self, wrapper: nn.Module) -> None:
        """A DistributedDataParallel of which nobody knows where it was made; nothing happens for one that is known."""
        if all(one.module() is not wrapper for one in self.context.agreement.wrapped):
            self._note_wrapper(wrapper, "")

    def _note_wrapper(self, wrapper: nn.Module, site: str) -> None:
        new = self.context.agreement.add(wrapper)
        self.origins.watch(parameter for _, parameter in new.held())
        trace = self.context.trace
        wrapped = Wrapped(
            ranks_of(new.ranks),
            broadcasts_buffers=bool(new.broadcasts),
            searches_unused=bool(wrapper.find_unused_parameters),
            static_graph=bool(getattr(wrapper, "static_graph", False)),
            reduced=len(new.reduced),
            held=sum(1 for _ in new.held()),
        )
        trace.note(wrapped, site=trace.texts.id(site) if site else 0)

    def _around_forward(self, original: Any) -> Any:
        rank = self.context.rank

        @self.context.guarded
        def counted(wrapper: Any, *given: Any) -> None:
            rank.on_idle()
            self._awaited.pop(id(wrapper), None)  # it is not gone past now
            self._count(wrapper, bool(wrapper.require_backward_grad_sync))
            rank.forwarded += largest_in(given, 3)
            self.inputs.given(*given)

        def forward(wrapper: Any, *args: Any, **kwargs: Any) -> Any:
            if torch.is_grad_enabled():
                if torch.compiler.is_compiling():
                    self._traced = True  # what a compiled function reads is a guard, which would compile it anew
                else:
                    counted(wrapper, args, kwargs)
            return original(wrapper, *args, **kwargs)

        return skipped(forward)

    def _count(self, wrapper: Any, synchronises: bool) -> None:
        (self._synced if synchronises else self._unsynced)[id(wrapper)] += 1

    def counts(self, optimizer: Optimizer) -> tuple[int, int]:
        """Forwards that average in backward, and those that do not (no_sync), through the wrappers of its parameters; through all
        where it holds none of any."""
        mine = self._wrappers_of(optimizer) or tuple({*self._synced, *self._unsynced})
        return sum(self._synced[one] for one in mine), sum(self._unsynced[one] for one in mine)

    def _wrappers_of(self, optimizer: Optimizer) -> tuple[int, ...]:
        """ids; looked for anew when there are other wrappers, or other parameters."""
        groups = [group["params"] for group in optimizer.param_groups]
        key = hash((*(id(one) for one in self.context.agreement.wrapped), *map(len, groups)))
        known = self._of.get(optimizer)
        if known is None or known[0] != key:
            held = {id(parameter) for group in groups for parameter in group}
            alive = ((one, one.module()) for one in self.context.agreement.wrapped)
            found = tuple(id(wrapper) for one, wrapper in alive if wrapper is not None and held & one.reduced)
            known = self._of[optimizer] = key, found
        return known[1]

    def backward_begins(self) -> None:
        """Count the compiled forward that it belongs to: within `no_sync()`, if that is around both."""
        if self._traced:
            alive = [wrapper for one in self.context.agreement.wrapped if (wrapper := one.module()) is not None]
            synchronises = all(wrapper.require_backward_grad_sync for wrapper in alive)
            for wrapper in alive:
                self._count(wrapper, synchronises)
            self._traced = False

    def _around_apply(self, original: Any) -> Any:
        @self.context.guarded
        def converted(module: nn.Module) -> None:
            if any(self._concerns(module)):
                self._note(Converted(type(module).__name__, self.context.step))

        def _apply(module: Any, *args: Any, **kwargs: Any) -> Any:
            self._converting += 1
            try:
                result = original(module, *args, **kwargs)
            finally:
                self._converting -= 1
            if not self._converting and self.context.agreement.wrapped:
                converted(module)
            return result

        return _apply

    def _concerns(self, module: nn.Module) -> Any:
        mine = {id(parameter) for parameter in module.parameters()}
        return (id(parameter) in mine for one in self.context.agreement.wrapped for _, parameter in one.held())

    def _registered(self, module: nn.Module, name: str, taken: Any) -> None:
        """A module took in a parameter or a child: note it when that module stands inside a wrapper."""
        if not self.context.agreement.wrapped or (
            isinstance(taken, nn.Module) and not any(True for _ in taken.parameters())
        ):
            return
        for one in self.context.agreement.wrapped:
            wrapper = one.module()
            if wrapper is not None and name not in self._added and len(self._added) < 16:
                inside: nn.Module = wrapper.module  # type: ignore[assignment]
                if any(module is child for child in inside.modules()):
                    self._added.add(name)
                    self._note(ParameterAdded(name, self.context.step))

    # -- forwards past the wrapper --------------------------------------------------------------------------------------

    def after_step(self, optimizer: Optimizer) -> None:
        """Where parameters had gradients without a forward through their wrapper, lie in wait for the forward that goes past."""
        mine = self._wrappers_of(optimizer)
        before, now = self._forwards_before.get(optimizer, {}), dict[int, int]()
        past = []
        for one in self.context.agreement.wrapped:
            wrapper = one.module()
            if wrapper is None or (mine and id(wrapper) not in mine):
                continue
            now[id(wrapper)] = forwards = self._synced[id(wrapper)] + self._unsynced[id(wrapper)]
            if forwards == before.get(id(wrapper), 0):
                past.append((wrapper, one))
        self._forwards_before[optimizer] = now
        self._since += 1
        if self._ambush is not None and self._ambush_of != id(optimizer) and self._since < PATIENCE:
            return  # the next forward may be for the other one
        if self._ambush is not None:
            self._ambush.remove()
            self._ambush = None
        if past and self._ambushes < AMBUSHES:
            self._lie_in_wait(optimizer, [(wrapper, one) for wrapper, one in past if _has_gradient(one)])

    def _lie_in_wait(self, optimizer: Optimizer, past: list[tuple[Any, WrappedModel]]) -> None:
        self._awaited = {}
        for wrapper, one in past:
            names = self._names(one)
            event = Bypassed(type(wrapper.module).__name__, self.context.step, one.number, names)
            self._awaited[id(wrapper)] = self.context.trace.note(event), event
        if past:
            self._ambushes += 1
            self._ambush_of, self._since = id(optimizer), 0
            inside = {id(child): id(wrapper) for wrapper, _ in past for child in wrapper.module.modules()}
            self._ambush = nn.modules.module.register_module_forward_pre_hook(not_traced(self._waiting_for(inside)))

    def _names(self, one: WrappedModel) -> tuple[str, ...]:
        """Of the parameters that it reduces, as `Tensor` records have them."""
        reduced = [parameter for _, parameter in one.held() if id(parameter) in one.reduced]
        found = self.context.trees.names(reduced)
        return tuple(known.name for p in reduced[:MOST_NAMES] if (known := found.get(id(p))) is not None)

    def _waiting_for(self, inside: dict[int, int]) -> Any:
        """`inside`: the id of each module in a wrapper, and that of the wrapper. Ids: nothing is kept alive."""

        @self.context.guarded
        def passing(module: nn.Module, inputs: Any) -> None:
            found = self._awaited.get(inside.get(id(module), 0))
            if found is not None and torch.is_grad_enabled() and self._ambush is not None:
                self._ambush.remove()
                self._ambush = None
                self._ambushes = AMBUSHES
                seq, event = found
                trace, line = self.context.trace, sites.calling_site(inside)
                trace.note_again(seq, replace(event, module=type(module).__name__), site=trace.texts.id(line))

        return passing

    def _note(self, event: TraceEvent, site: str = "") -> None:
        trace = self.context.trace
        trace.note(event, site=trace.texts.id(site or sites.user_site()))


def _has_gradient(one: WrappedModel) -> bool:
    """Whether a parameter that a wrapper reduces has a gradient."""
    return any(parameter.grad is not None for _, parameter in one.held() if id(parameter) in one.reduced)
