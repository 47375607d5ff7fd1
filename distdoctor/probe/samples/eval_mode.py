"""Whether the model that is trained is in eval mode just now: a loader that is read then evaluates, even with gradients on."""

from __future__ import annotations

import threading
import weakref
from typing import Any

from torch import nn

from distdoctor.probe import wrappers
from distdoctor.probe.compile_guard import skipped
from distdoctor.probe.context import Rank

EVALUATION = "evaluation"


class Modes:
    """The module that was told `train()` last, by the user and not by a module around it. It is not kept alive."""

    def __init__(self) -> None:
        self._trained: weakref.ref[nn.Module] | None = None
        self._inside = threading.local()

    @property
    def evaluating(self) -> bool:
        """False where no `train()` was ever called: then a model in eval mode may be a teacher's."""
        module = self._trained() if self._trained is not None else None
        return module is not None and not module.training

    def install(self, rank: Rank) -> None:
        """Watch `Module.train` from now on."""
        inside, trained = self._inside, rank.guarded(self._note)

        @rank.guarded
        def evaluates(module: nn.Module) -> None:
            if self._is_trained(module):
                rank.phase_begins(EVALUATION)

        def watching(original: Any) -> Any:
            def train(module: nn.Module, mode: bool = True) -> Any:
                if not mode or getattr(inside, "at_work", False):
                    if not mode:
                        evaluates(module)
                    return original(module, mode)
                inside.at_work = True
                try:
                    return original(module, mode)
                finally:
                    inside.at_work = False
                    rank.phase_ends(EVALUATION)
                    trained(module)

            return skipped(train)

        wrappers.lay(nn.Module, "train", watching)

    def _is_trained(self, module: nn.Module) -> bool:
        return self._trained is not None and self._trained() is module

    def _note(self, module: nn.Module) -> None:
        self._trained = weakref.ref(module)
