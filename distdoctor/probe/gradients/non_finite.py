"""Where the first NaN or infinity comes from: which module's output, or which parameter's local gradient.

Deep looks ask every module and every gradient. Others ask the values that autograd has kept when the loss is not finite, and
after each backward the gradient of a parameter that it reaches last: what arises on the way arrives there.

Gradients are seen as this rank computed them, before they are averaged: afterwards a NaN of one rank is everybody's.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from distdoctor.probe import sites
from distdoctor.probe.compile_guard import not_traced
from distdoctor.probe.gradients.context import GradientsContext
from distdoctor.probe.gradients.kept_values import origin_of
from distdoctor.probe.gradients.scalers import Scalers
from distdoctor.probe.interruptions import hand_on
from distdoctor.probe.tensors.digests import is_readable, local
from distdoctor.recording.trace.events import NonFinite

LAST_REACHED = 2  # parameters from the start of a model; backward reaches them last
SMALL = 1 << 16  # elements: what is read after each backward takes microseconds
LOOKS_AFTER = 4  # steps that are looked at because a gradient was not finite: was it used, and what came of it


class Origins:
    """Looks at every module's output and every parameter's gradient until the first value that is not finite."""

    def __init__(self, context: GradientsContext, scalers: Scalers) -> None:
        self.context, self.scalers = context, scalers
        self.suspect: tuple[str, ...] | None = (
            None  # (what, name) of the first in the forward that is going on, and what ran before
        )
        self._finite: weakref.ref[nn.Module] | None = None  # the layer that ran last in it, while all was finite
        self._watched: set[int] = set()
        self._found = False  # a gradient that is not finite
        self.looks_wanted = 0  # steps that are to be looked at, whatever it costs
        self._told: set[str] = set()

    def install(self) -> None:
        """From now on, on the CPU; a device would have to be waited for."""
        nn.modules.module.register_module_forward_hook(not_traced(self.context.guarded(self._after_forward)))

    def watch(self, parameters: Iterable[Tensor]) -> None:
        """Look at the local gradients of these parameters as they are computed: all, or those that backward reaches last."""
        given = [one for one in parameters if one.requires_grad and one.is_leaf]
        if not self.context.deep:
            known = any(id(one) in self._watched for one in given)
            given = [] if known else [one for one in given if _is_quickly_read(one)][:LAST_REACHED]
        for parameter in given:
            if id(parameter) not in self._watched:
                self._watched.add(id(parameter))
                hook = self.context.guarded(self._after_gradient)
                parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]

    def take_suspect(self) -> tuple[str, ...] | None:
        """What was not finite first in the forward before this backward."""
        suspect, self.suspect, self._finite = self.suspect, None, None
        return suspect

    def tell_loss(self, loss: float, suspect: tuple[str, ...] | None, root: Tensor) -> None:
        """Note the first loss that is not finite, and what was so first before it."""
        if "loss" in self._told:
            return
        self.tell("loss", repr(loss))
        found = suspect or self._kept_origin(root)
        if found is not None:
            what, name, *before = found
            self.tell(what, name)
            for one in before:
                self.tell("last finite", one)

    def _kept_origin(self, root: Tensor) -> tuple[str, str] | None:
        try:
            return origin_of(root, self._holder_of)
        except RuntimeError as error:  # a part of the graph was gone through before, and is free
            hand_on(error)
        except Exception as error:
            hand_on(error)
            self.context.leave_out("where a loss comes from", error)
        return None

    def _holder_of(self, parameter: Tensor) -> tuple[str, str]:
        held = self.context.trees.names([parameter]).get(id(parameter))
        return (held.name, held.owner) if held is not None else ("", "")

    def tell(self, what: str, name: str) -> None:
        """Note the first value of its kind that is not finite."""
        if what in self._told:
            return
        self._told.add(what)
        trace = self.context.trace
        site = trace.texts.id(sites.user_site())
        trace.note(NonFinite(what, name, self.context.step + 1, self.context.backwards), site=site)

    def _after_forward(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if (
            self.suspect is not None
            or self._found
            or not torch.is_grad_enabled()
            or any(True for _ in module.children())
        ):
            return
        if _is_finite(output):
            self._finite = weakref.ref(module)
        elif _is_finite(inputs):
            self.suspect = ("output", self._named(module))
        else:
            before = self._finite() if self._finite is not None else None
            self.suspect = ("input", self._named(module), *([self._named(before)] if before is not None else []))

    def _after_gradient(self, parameter: Tensor) -> None:
        if self._found or self.scalers.at_work or parameter.grad is None or _is_finite(parameter.grad):
            return
        self._found = True
        self.looks_wanted = LOOKS_AFTER
        origin = parameter if self.context.deep else self._nearest_to_the_loss(parameter)
        name = self._holder_of(origin)[0] or f"parameter of shape {list(origin.shape)}"
        self.tell("gradient", name)

    def _nearest_to_the_loss(self, reached: Tensor) -> Tensor:
        """The last parameter, in the order of the model that holds this one, whose gradient is not finite by now."""
        for root in self.context.trees.roots():
            held: Sequence[Tensor] = list(root.parameters())
            if any(one is reached for one in held):
                return next(one for one in reversed(held) if one is reached or not _is_finite(one.grad))
        return reached

    def _named(self, module: nn.Module) -> str:
        return f"{self._name_of(module)} ({type(module).__name__})"

    def _name_of(self, module: nn.Module) -> str:
        for root in self.context.trees.roots():
            for name, one in root.named_modules():
                if one is module:
                    return name or type(root).__name__
        return type(module).__name__


def _is_quickly_read(parameter: Tensor) -> bool:
    """Whether it lies whole on the CPU, and is small. The gradient of a shard is averaged before anybody sees it."""
    plain = local(parameter) is parameter and parameter.device.type == "cpu"
    return plain and parameter.is_floating_point() and parameter.numel() <= SMALL


def _is_finite(value: Any) -> bool:
    """Whether all numbers on the CPU are finite; what lies on a device is taken to be."""
    if isinstance(value, Tensor):
        inner = local(value)
        if not inner.is_floating_point() or inner.device.type != "cpu" or not is_readable(value) or not inner.numel():
            return True
        return math.isfinite(inner.detach().sum(dtype=torch.float64).item())
    if isinstance(value, tuple | list):
        return all(_is_finite(one) for one in value)
    if isinstance(value, dict):
        return all(_is_finite(one) for one in value.values())
    return True
