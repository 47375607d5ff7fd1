"""A few elements of two gradients, as this rank computed them and as the optimizer finds them: the reduction lies in between.

Averaging gives the mean of all ranks' own values. A sum that nobody divides, or a mean that is divided again, shows as a factor.
Where a rank only holds shards (DTensors), theirs: what lies between is what each rank does to its shard alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from distdoctor.probe.gradients.context import GradientsContext
from distdoctor.probe.gradients.inventory import Inventory
from distdoctor.probe.tensors.digests import is_readable, local
from distdoctor.recording.trace.layout import SPOTS

_PROBE = os.path.dirname(os.path.dirname(__file__))
TENSORS = 2
WITNESSES = (
    6  # tensors spread over the model that tell whether a backward reached it: a layer may rest, the last one too
)
LOOKS = 8  # steps in which spots are taken, and a few later: a wrong factor is mostly there from the start
LATER = 3  # successive steps from each power of two on: what a job does differently in its later stages shows there


class SampledElements:
    """The own values of one optimizer's spots, by the position of the tensor."""

    def __init__(
        self,
        context: GradientsContext,
        inventory: Inventory,
        parameters: Sequence[Tensor],
        wanted: Callable[[], bool],
        *,
        accumulated: bool = False,
    ) -> None:
        """`wanted()`: whether the step under way is looked at."""
        self.context, self.inventory, self._wanted = context, inventory, wanted
        self.accumulated = accumulated  # a backward has added to a gradient since the step before
        self.own: dict[int, list[float]] = {}
        usable = [number for number, parameter in enumerate(parameters) if _is_usable(parameter)]
        plain = [number for number in usable if local(parameters[number]) is parameters[number]]
        experts = self._of_experts(plain, parameters)
        others = [number for number in plain if number not in experts] or plain or usable
        self.chosen = sorted({*others[-TENSORS:], *experts[-1:]})
        self._last = others[-1:]
        self.looks = 0
        self.stepped_with: tuple[int, list[float]] = (
            0,
            [],
        )  # the latest step, and the elements that are watched as it used them
        self.from_the_start = False  # these hooks were there before the first backward of the present step
        self._handles: list[Any] = []
        self._later: list[Any] = []  # hooks that are there for the step under way
        spread = usable[:: max(1, len(usable) // WITNESSES)]
        for number in sorted({*self.chosen, *spread}):
            taken = self._taking(number) if number in self.chosen else self._witnessing
            handle = parameters[number].register_post_accumulate_grad_hook(context.guarded(taken))  # type: ignore[no-untyped-call]
            self._handles.append(handle)

    def _of_experts(self, plain: Sequence[int], parameters: Sequence[Tensor]) -> list[int]:
        """Those of experts, by their names or by what the script has set on them: they are reduced in a way of their own."""
        names = self.context.trees.names(parameters) if self.inventory.ids else {}
        words = ((n, [getattr(names.get(id(parameters[n])), "name", ""), *vars(parameters[n])]) for n in plain)
        return [n for n, one in words if any("expert" in word.lower() for word in one)]

    def _witnessing(self, parameter: Tensor) -> None:
        self.accumulated = True

    def _taking(self, number: int) -> Callable[[Tensor], None]:
        def take(parameter: Tensor) -> None:
            self.accumulated = True
            wanted = self.looks < LOOKS and self._wanted()
            # Every backward before the step adds to the same gradient: the last value is the one that is averaged.
            if wanted and parameter.grad is not None and not _is_changed_on_the_way(parameter):
                self.own[number] = spots_of(parameter.grad)

        return take

    @property
    def takes_later(self) -> bool:
        """Whether hooks are there again for the step under way."""
        return bool(self._later)

    def prepare(self, step: int, held: Callable[[], Sequence[Tensor]]) -> None:
        """The step that begins is number `step`; called after each one. Hooks are there for those only that are looked at."""
        if self.looks < LOOKS or self.takes_later is _is_later(step):
            return
        _remove(self._later)
        parameters = held() if _is_later(step) else ()
        held_still = bool(parameters) and self.inventory.still_holds(parameters)
        for number in (one for one in self.chosen if held_still and parameters[one].requires_grad):
            taken = self.context.guarded(self._taking_later(number))
            self._later.append(parameters[number].register_post_accumulate_grad_hook(taken))  # type: ignore[no-untyped-call]

    def _taking_later(self, number: int) -> Callable[[Tensor], None]:
        def take(parameter: Tensor) -> None:
            if parameter.grad is not None and not _is_changed_on_the_way(parameter):
                self.own[number] = spots_of(parameter.grad)

        return take

    @property
    def watched(self) -> int | None:
        """The number of a parameter of which every accumulation is still seen."""
        return self._last[0] if self._last and self.looks < LOOKS else None

    def write(self, parameters: Sequence[Tensor], step: int) -> None:
        """The spots of one of the first steps; called when the optimizer is about to use the gradients."""
        if self.looks >= LOOKS or not self.accumulated:
            return
        self.looks += 1
        watched = parameters[self._last[0]].grad if self._last and self._last[0] < len(parameters) else None
        if watched is not None:
            self.stepped_with = step, spots_of(watched)
        self._write_own(parameters, step)
        if self.looks >= LOOKS:
            _remove(self._handles)

    def write_later(self, held: Callable[[], Sequence[Tensor]], step: int) -> None:
        """The spots of a step for which hooks were there again."""
        if self.takes_later and self.own:
            self._write_own(held(), step)

    def end(self) -> None:
        """The optimizer holds other parameters by now."""
        _remove(self._handles)
        _remove(self._later)

    def _write_own(self, parameters: Sequence[Tensor], step: int) -> None:
        inventory = self.inventory
        for number, own in self.own.items():
            grad = parameters[number].grad if number < len(parameters) else None
            if grad is not None and number < len(inventory.entries):
                elements = {f"own_{i}": value for i, value in enumerate(own)}
                elements |= {f"used_{i}": value for i, value in enumerate(spots_of(grad))}
                seq = inventory.entries[number].seq
                self.context.trace.spots.write(step=step, tensor=seq, **elements)
        self.own.clear()


def _remove(handles: list[Any]) -> None:
    for handle in handles:
        handle.remove()
    handles.clear()


def _is_later(step: int) -> bool:
    return step - (1 << step.bit_length() - 1) < LATER


def _is_changed_on_the_way(parameter: Tensor) -> bool:
    """Whether hooks of the user's own come before ours, or before the gradient is there: then nobody knows what this rank has
    computed. They may scale it, or reduce it already."""
    earlier: Any = parameter._backward_hooks
    also: Any = getattr(parameter, "_post_accumulate_grad_hooks", None)
    return any(not _is_ours(hook) for hooks in (earlier, also) for hook in (hooks or {}).values())


def _is_ours(hook: Any) -> bool:
    code = getattr(hook, "__code__", None)
    return code is not None and code.co_filename.startswith(_PROBE)


def _is_usable(parameter: Tensor) -> bool:
    inner, mesh = local(parameter), getattr(parameter, "device_mesh", None)
    # Shards that were only moved to the host: a hook on them would change how fully_shard copies their gradients.
    moved = inner is not parameter and getattr(mesh, "device_type", "") != "cpu"
    return (
        parameter.requires_grad
        and parameter.is_leaf
        and not moved
        and inner.device.type == "cpu"
        and inner.numel() >= SPOTS
        and is_readable(parameter)
    )


def spots_of(grad: Tensor) -> list[float]:
    """Elements spread over a gradient on the CPU, always the same ones; zeros for one that cannot be read. Of a DTensor, over
    what lies on this rank."""
    inner = local(grad)
    if inner.is_sparse or not is_readable(grad) or inner.numel() < SPOTS:
        return [0.0] * SPOTS
    flat = inner.detach().reshape(-1)
    size = flat.numel()
    return [float(flat[(2 * spot + 1) * size // (2 * SPOTS)]) for spot in range(SPOTS)]
