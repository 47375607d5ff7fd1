"""Whether gradients are forgotten between steps: what is still there when the first backward of the next step begins piles up."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from distdoctor.probe import wrappers
from distdoctor.probe.gradients.digests import is_readable, local

if TYPE_CHECKING:
    from distdoctor.probe.gradients.stream import GradientsStream, Tracked

LOOKS = 16  # steps of one optimizer that are looked at


class Zeroing:
    """Counts calls of zero_grad, and looks at one gradient of each optimizer when backward begins. On the CPU alone."""

    def __init__(self, stream: GradientsStream) -> None:
        self.stream = stream
        self._modules = 0  # calls of Module.zero_grad so far
        self._optimizers: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()

    def install(self) -> None:
        wrappers.lay(Optimizer, "zero_grad", self._around(self._of_optimizer))
        wrappers.lay(nn.Module, "zero_grad", self._around(self._of_module))

    def calls(self, optimizer: Optimizer) -> int:
        """How often this optimizer's gradients, or those of any module, were zeroed."""
        return self._modules + self._optimizers.get(optimizer, 0)

    def look(self, optimizer: Optimizer, tracked: Tracked) -> None:
        """The first backward after a step of this optimizer begins."""
        if tracked.step > LOOKS:
            return
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if isinstance(parameter.grad, Tensor):
                    # Only what lies here: asking a whole DTensor would be a collective.
                    grad = local(parameter.grad)
                    tracked.piled = grad.device.type == "cpu" and is_readable(grad) and bool(grad.detach().any())
                    return

    def _around(self, note: Any) -> Any:
        noted = self.stream.guarded(note)

        def make(original: Any) -> Any:
            def zero_grad(owner: Any, *args: Any, **kwargs: Any) -> Any:
                noted(owner)
                return original(owner, *args, **kwargs)

            return zero_grad

        return make

    def _of_optimizer(self, optimizer: Optimizer) -> None:
        self._optimizers[optimizer] = self._optimizers.get(optimizer, 0) + 1

    def _of_module(self, module: nn.Module) -> None:
        self._modules += 1
