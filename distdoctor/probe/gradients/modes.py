"""Whether the layers that compute in another way while they train are in training mode when the optimizer steps."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from distdoctor.probe import sites
from distdoctor.probe.gradients.context import GradientsContext
from distdoctor.recording.trace.events import MOST_MODES, ModesSeen


class Modes:
    """Of the models that one optimizer trains. A note when something has changed since the last look."""

    def __init__(self, context: GradientsContext, number: int) -> None:
        self.context, self.number = context, number
        self._last: tuple[int, int, bool] | None = None
        self._left = MOST_MODES

    def look(self, roots: Iterable[nn.Module], step: int) -> None:
        """Count them as they are in this step."""
        training = evaluating = 0
        whole = False
        for root in roots:
            whole = whole or not root.training
            for module in root.modules():
                if _matters(module):
                    training, evaluating = training + module.training, evaluating + (not module.training)
        seen = training, evaluating, whole
        if seen != self._last and self._left and training + evaluating:
            self._last, self._left = seen, self._left - 1
            site = self.context.trace.texts.id(sites.user_site())
            self.context.trace.note(ModesSeen(self.number, step, training, evaluating, whole), site=site)


def _matters(module: nn.Module) -> bool:
    if isinstance(module, nn.modules.dropout._DropoutNd):
        return module.p > 0
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        return module.track_running_stats
    return isinstance(module, nn.RNNBase | nn.MultiheadAttention) and module.dropout > 0
