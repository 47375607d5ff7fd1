"""Whether gradients are forgotten between steps: what is still there whenever a backward begins, and is added to, piles up."""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from distdoctor.probe import sites, wrappers
from distdoctor.probe.gradients.context import GradientsContext
from distdoctor.probe.gradients.sampled_elements import spots_of
from distdoctor.probe.gradients.tracked import Tracked
from distdoctor.probe.tensors.digests import is_readable, local
from distdoctor.recording.trace.events import Cleared

MOST_NOTED = 4  # steps in which gradients were zeroed on the way
LOOKS = 8  # steps of one optimizer that are looked at


class _Calls(NamedTuple):
    """Of zero_grad: how many, the backward passes before the last one, and where that stood."""

    times: int = 0
    backwards: int = 0
    site: str = ""


class Zeroing:
    """Counts calls of zero_grad, and looks at one gradient of each optimizer when backward begins: on the CPU alone."""

    def __init__(self, context: GradientsContext) -> None:
        self.context = context
        self._last = 0  # backward passes when anything was zeroed last
        self._noted = 0
        self._modules = _Calls()
        self._optimizers: weakref.WeakKeyDictionary[Optimizer, _Calls] = weakref.WeakKeyDictionary()

    def install(self) -> None:
        wrappers.lay(Optimizer, "zero_grad", self._around(self._of_optimizer))
        wrappers.lay(nn.Module, "zero_grad", self._around(self._of_module))

    def calls(self, optimizer: Optimizer) -> int:
        """How often this optimizer's gradients, or those of any module, were zeroed."""
        return self._modules.times + self._optimizers.get(optimizer, _Calls()).times

    def cleared(self, first: int) -> bool:
        """Whether something was zeroed after the backward pass number `first` + 1 had been."""
        return self._last > first

    def note(self, optimizer: Optimizer, tracked: Tracked, first: int) -> None:
        """What was zeroed between two of those backward passes were gradients of this optimizer, in this step of it."""
        last = max(self._modules, self._optimizers.get(optimizer, _Calls()), key=lambda calls: calls.backwards)
        if self._noted < MOST_NOTED and first < last.backwards < self.context.backwards:
            self._noted += 1
            self.context.trace.note(Cleared(tracked.number, tracked.step), site=self.context.trace.texts.id(last.site))

    def look(self, optimizer: Optimizer, tracked: Tracked) -> None:
        """A backward begins after a step of this optimizer: gradients pile up if they are there whenever one does.

        Not the first one alone: where two optimizers take turns, the backward of one finds the gradients of the other.
        """
        watched = tracked.spots.watched if tracked.spots is not None else None
        if tracked.step > LOOKS or watched is None or tracked.piled is False:
            return
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        if watched < len(parameters):
            # Only what lies here: asking a whole DTensor would be a collective.
            grad = parameters[watched].grad
            there = isinstance(grad, Tensor) and is_readable(grad) and bool(local(grad).detach().any())
            tracked.piled = there and not _is_changed(grad, tracked)

    def _around(self, note: Any) -> Any:
        noted = self.context.guarded(note)

        def make(original: Any) -> Any:
            def zero_grad(owner: Any, *args: Any, **kwargs: Any) -> Any:
                noted(owner)
                return original(owner, *args, **kwargs)

            return zero_grad

        return make

    def _of_optimizer(self, optimizer: Optimizer) -> None:
        self._optimizers[optimizer] = self._once_more(self._optimizers.get(optimizer, _Calls()))

    def _of_module(self, module: nn.Module) -> None:
        self._modules = self._once_more(self._modules)

    def _once_more(self, calls: _Calls) -> _Calls:
        self.context.rank.on_idle()
        self._last = self.context.backwards
        shown = self._last != calls.backwards and self._noted < MOST_NOTED
        return _Calls(calls.times + 1, self._last, sites.user_site() if shown else calls.site)


def _is_changed(grad: Tensor, tracked: Tracked) -> bool:
    """Whether the program has changed the gradient since the step used it: gradients that fade by hand do not pile up."""
    step, used = tracked.spots.stepped_with if tracked.spots is not None else (0, [])
    return step == tracked.step and bool(used) and spots_of(grad) != used
