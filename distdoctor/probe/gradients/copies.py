"""Copies of what is trained: moving averages, target networks, the policy that plays, the teacher that was cloned. And models
of another form beside it that nobody trains: a larger teacher, a random target, an encoder. These are looked at once.

A copy is a module with the parameter names and shapes of the trained one, that no optimizer holds, or a dictionary or a list of
such tensors that an object of the user's keeps (see `held_copies`). How it looks at a step is one
digest of all its parameters: as they are when the thread that steps first computes with it in that step, else when the step is
over. Which of the user's lines lets it compute is waited for in the steps that are looked at, and after a loader began to be
read: an average is often used for the first time when an epoch is over.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from distdoctor.probe import sites
from distdoctor.probe.compile_guard import compiles, not_traced
from distdoctor.probe.gradients.context import GradientsContext
from distdoctor.probe.gradients.held_copies import HeldTensors, held_copies, layout_of
from distdoctor.probe.gradients.inventory import Inventory
from distdoctor.probe.tensors.digests import Digests, Reading, finished_all, kinds_of
from distdoctor.recording.trace.events import Copied, CopyUsed
from distdoctor.recording.trace.layout import DigestFlag, TensorFlag, extend

MOST = 4  # copies of one optimizer's model, and as many others beside it
MOST_ELEMENTS = 1 << 26  # of one of these others
SEARCHES = 6  # for copies that came later
SEARCHES_HELD = 3  # steps, for those that are no modules
AMBUSHES = 4  # first steps in which the forward of a copy is waited for
LOADERS = 64  # beginnings of a loader after which it is waited for, until the next step


_Now = tuple[Reading, list[int], int]


class Copy:
    """One copy. The module is held weakly; `order` are the places of its originals among the optimizer's parameters."""

    def __init__(self, module: nn.Module, order: Sequence[int], seq: int, name: str) -> None:
        self.module: Callable[[], nn.Module | None] = weakref.ref(module)
        self.order, self.seq, self.name = tuple(order), seq, name
        self.length = len(order) or len(list(module.parameters()))
        self.looked_at = -1  # of what is no copy: how often it had been written to by then
        self.digests = Digests()
        self.used = False
        self.computing: _Now | None = None  # as it was when it first computed since the step before

    def parameters(self) -> list[Tensor]:
        """Its parameters; [] when it is gone, or is trained itself by now."""
        module = self.module()
        held: list[Tensor] = list(module.parameters()) if module is not None else []
        return held if len(held) == self.length and all(p.grad is None for p in held) else []

    def now(self) -> _Now | None:
        """How it is now, on its way; None where that is known."""
        own = self.parameters()
        written = _written(own)
        if not own or (not self.order and written == self.looked_at):
            return None
        self.looked_at = written
        return self.digests.start(own)[0], kinds_of(own), written


class HeldCopy(Copy):
    """A copy that is no module. Its owner is held weakly; nobody waits for its forward."""

    def __init__(self, held: HeldTensors, seq: int) -> None:
        self.held, self.order, self.seq, self.name = held, held.order, seq, held.name
        self.module, self.length, self.looked_at = _nothing, len(held.order), -1
        self.digests = Digests()
        self.used, self.computing = False, None

    def parameters(self) -> list[Tensor]:
        """Its tensors; [] when it is gone, or is another one by now."""
        return self.held.tensors()


def _nothing() -> None:
    """Of a copy that is no module."""


CopyReading = tuple[Copy, Reading, list[int], int, int]
"""A copy, its digests on their way, the kinds of its tensors, how often these have been written to, and `DigestFlag`s."""


class Copies:
    """The copies of what one optimizer trains."""

    def __init__(self, context: GradientsContext, number: int) -> None:
        self.context, self.number = context, number
        self.found: list[Copy] = []
        self._taken = 0  # so far
        self._searched = self._searched_held = 0
        self._known = -1
        self._ambushes = self._loaders = 0
        self._ambush: Any = None
        self._trainer = 0  # the thread that steps

    def search(self, parameters: Sequence[Tensor], inventory: Inventory, trained: set[int]) -> None:
        """Look for copies, when modules have come since the last search. `trained`: ids that some optimizer holds."""
        self._let_go_of(trained)
        self._search_held(parameters, inventory)
        trees = self.context.trees
        if trees.copied == self._known or self._searched >= SEARCHES or not parameters:
            return
        self._known, self._searched = trees.copied, self._searched + 1
        known = {id(inner) for copy in self.found if (held := copy.module()) is not None for inner in held.modules()}
        places = {id(parameter): number for number, parameter in enumerate(parameters)}
        originals = dict(_shapes(root, places) for root in _subtrees(trees.of(parameters)))
        for module in _subtrees(trees.roots()):
            shape, _ = _shapes(module, {})
            order = originals.get(shape)
            own = [id(parameter) for parameter in module.parameters()]
            copies = sum(1 for copy in self.found if copy.order)
            if order and id(module) not in known and not trained & {*own} and copies < MOST:
                known |= {id(inner) for inner in module.modules()}  # the whole of it is one copy
                self.found.append(self._take(module, order, inventory))
        for module in _subtrees(trees.roots()):
            own = [id(parameter) for parameter in module.parameters()]
            others = sum(1 for copy in self.found if not copy.order)
            if others < MOST and id(module) not in known and not trained & {*own} and _is_whole(module):
                known |= {id(inner) for inner in module.modules()}
                self.found.append(self._take(module, (), inventory))

    def _search_held(self, parameters: Sequence[Tensor], inventory: Inventory) -> None:
        """Look for copies that are no modules, in the first steps."""
        if self._searched_held >= SEARCHES_HELD or not parameters:
            return
        self._searched_held += 1
        known = {copy.name for copy in self.found}
        places = {id(parameter): number for number, parameter in enumerate(parameters)}
        layouts = [
            layout for root in _subtrees(self.context.trees.of(parameters)) if (layout := layout_of(root, places))
        ]
        for held in held_copies(sys._getframe(1), layouts, parameters) if layouts else ():
            if held.name not in known and len(known) < MOST:
                known.add(held.name)
                elements = sum(tensor.numel() for tensor in held.tensors())
                self.found.append(
                    HeldCopy(held, self._write_tensor(held.name, held.kind, elements, held.order, inventory))
                )

    def _let_go_of(self, trained: set[int]) -> None:
        """What an optimizer has begun to train is no longer a model beside it."""
        for copy in [one for one in self.found if not one.order]:
            module = copy.module()
            if module is not None and any(id(parameter) in trained for parameter in module.parameters()):
                self.found.remove(copy)
                self.context.trace.digests.write(param=0, step=self.context.step, tensor=copy.seq)

    def _take(self, module: nn.Module, order: tuple[int, ...], inventory: Inventory) -> Copy:
        trace, kind = self.context.trace, type(module).__name__
        name = self.context.trees.variable_of(module) or self.context.trees.path_of(module) or kind
        elements = sum(parameter.numel() for parameter in module.parameters())
        seq = self._write_tensor(name, kind, elements, order, inventory, 0 if order else TensorFlag.FROZEN)
        made = trace.texts.id(self.context.trees.made_at(module))
        trace.note(Copied(name, kind, self.context.step), site=made)
        return Copy(module, order, seq, name)

    def _write_tensor(
        self,
        name: str,
        kind: str,
        elements: int,
        order: tuple[int, ...],
        inventory: Inventory,
        flag: int = TensorFlag.PLAIN,
    ) -> int:
        trace, entry = self.context.trace, inventory.entries[order[0] if order else 0]
        self._taken += 1
        return trace.tensors.write(
            numel=elements,
            name=trace.texts.id(name),
            agree=entry.agree,
            grad_agree=entry.agree,
            owner=trace.texts.id(kind),
            optimizer=self.number,
            flags=int(TensorFlag.BUFFER | TensorFlag.COPY | flag),
            index=self._taken - 1,
        )

    def start(self) -> list[CopyReading]:
        """Digests of all copies, on their way."""
        found: list[CopyReading] = []
        for copy in self.found:
            computing, copy.computing = copy.computing, None
            now = computing or copy.now()
            if now is not None and copy.parameters():  # by now its gradients may tell that it is trained itself
                found.append((copy, *now, int(DigestFlag.COMPUTING) if computing else 0))
        return found

    def write(self, step: int, started: Sequence[CopyReading], originals: Sequence[int]) -> None:
        """One row for each copy, and in it what its originals are: `originals` are digests of the optimizer's parameters."""
        for copy, reading, kinds, written, flags in started:
            own = original = 0
            for value in finished_all(reading, kinds):
                own = extend(own, value)
            for place in copy.order:
                original = extend(original, originals[place])
            self.context.trace.digests.write(
                param=own, before=original, grad_sum=written, step=step, tensor=copy.seq, flags=flags
            )

    # -- who uses them ---------------------------------------------------------------------------------------------------

    def after_step(self, *, looked_at: bool) -> None:
        """Lie in wait for the forward of a copy until the next step is over: in the first steps, and in those `looked_at`."""
        self._trainer = threading.get_ident()
        if self._ambush is not None:
            self._ambush.remove()
            self._ambush = None
        if looked_at or self._ambushes < AMBUSHES:
            self._ambushes += self._lie_in_wait(looked_at=looked_at)

    def loader_begins(self) -> None:
        """The same when a loader begins to be read, as at the end of an epoch."""
        if self._ambush is None and self._loaders < LOADERS:
            self._loaders += self._lie_in_wait(looked_at=False)

    def _lie_in_wait(self, *, looked_at: bool) -> bool:
        waited_for = {
            id(child): copy
            for copy in self.found
            if (looked_at or not copy.used) and (module := copy.module()) is not None
            for child in module.modules()
        }
        if not waited_for or compiles():
            return False
        hook = not_traced(self.context.guarded(self._waiting_for(waited_for, looked_at)))
        self._ambush = nn.modules.module.register_module_forward_pre_hook(hook)
        return True

    def _waiting_for(self, waited_for: dict[int, Copy], looked_at: bool) -> Any:
        def passing(module: nn.Module, inputs: Any) -> None:
            copy = waited_for.get(id(module))
            if copy is None:
                return
            # Another thread computes when it likes, on one rank before and on the other after the copy was refreshed.
            if looked_at and copy.computing is None and threading.get_ident() == self._trainer:
                copy.computing = copy.now()
            if not copy.used:
                copy.used = True
                trace = self.context.trace
                trace.note(CopyUsed(copy.name, self.context.step), site=trace.texts.id(sites.user_site()))

        return passing


def _written(parameters: Sequence[Tensor]) -> int:
    """How often the parameters have been written to, each counted; 0 where torch does not count (inference tensors)."""
    return 0 if any(parameter.is_inference() for parameter in parameters) else sum(p._version for p in parameters)


def _is_whole(module: nn.Module) -> bool:
    """Whether it holds parameters, not too many, and none of which this rank holds a part."""
    held = list(module.parameters())
    parts = any(getattr(one, "_spec", None) is not None or hasattr(one, "_shard_param_infos") for one in held)
    return bool(held) and not parts and sum(one.numel() for one in held) <= MOST_ELEMENTS


def _subtrees(roots: Sequence[nn.Module]) -> Iterator[nn.Module]:
    """The roots, and what stands right below them: agents and learners hold the network and its copy side by side. Only those
    whose parameters are such as can be compared."""
    for root in roots:
        below = (child for child in root._modules.values() if child is not None and len(roots) < 64)
        yield from (module for module in (root, *below) if _is_readable(module))


def _is_readable(module: nn.Module) -> bool:
    """Whether all its parameters are ordinary tensors: with a shape, with values, side by side in memory."""
    return not any(
        is_lazy(one) or one.is_meta or one.is_nested or one.is_quantized or one.layout is not torch.strided
        for one in module.parameters()
    )


def _shapes(module: nn.Module, places: dict[int, int]) -> tuple[tuple[tuple[str, str], ...], tuple[int, ...]]:
    """Names and shapes of all its parameters, and their places; no places where one has none."""
    held = [(name.removeprefix("module."), parameter) for name, parameter in module.named_parameters()]
    order = tuple(places.get(id(parameter), -1) for _, parameter in held)
    return tuple((name, str(list(p.shape))) for name, p in held), order if min(order, default=-1) >= 0 else ()
