"""What random state each rank has when backward begins, where dropout or the loop draws from it; and checkpoints that do not
restore it."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
import torch.utils.checkpoint
from torch import nn

from distdoctor.probe import sites, wrappers
from distdoctor.probe.compile_guard import watched
from distdoctor.probe.gradients.context import GradientsContext
from distdoctor.recording.trace.events import BackwardRng, UnkeptRng

LOOKS = 6  # backward passes; equal or unequal states show in the first ones


class RngStates:
    """Notes digests of the generators' states. Nothing is drawn, and no device is waited for."""

    def __init__(self, context: GradientsContext) -> None:
        self.context = context
        self._dropout: str | None = None
        self._calls = 0
        self._state = ""

    def install(self) -> None:
        wrappers.lay(torch.utils.checkpoint, "checkpoint", self._around_checkpoint)

    def backward_begins(self, count: int) -> None:
        """Backward pass number `count` of this rank begins."""
        if count > LOOKS or watched():
            return
        if not self._dropout:
            self._dropout = self._active_dropout()
        before, self._state = self._state, _state()
        if self._dropout or (before and before != self._state):
            self.context.trace.note(BackwardRng(self._state, self._dropout, count))

    def _active_dropout(self) -> str:
        for root in self.context.trees.roots():
            for name, module in root.named_modules():
                rate = module.p if isinstance(module, nn.modules.dropout._DropoutNd) else 0.0
                if rate and module.training:
                    return f"{name} ({type(module).__name__} {rate:g})"
        return ""

    def _around_checkpoint(self, original: Any) -> Any:
        @self.context.guarded
        def looked(before: str, function: Any) -> None:
            if before and before != _state():
                name = getattr(function, "__name__", type(function).__name__)
                trace = self.context.trace
                trace.note(UnkeptRng(name, self.context.step + 1), site=trace.texts.id(sites.user_site()))
                self._calls = LOOKS

        @self.context.guarded
        def state() -> str:
            self._calls += 1
            return _state() if torch.is_grad_enabled() and not watched() else ""

        def checkpoint(function: Any, *args: Any, **kwargs: Any) -> Any:
            if kwargs.get("preserve_rng_state", True) or self._calls >= LOOKS:
                return original(function, *args, **kwargs)
            before = state()
            result = original(function, *args, **kwargs)
            looked(before, function)
            return result

        return checkpoint


def _state() -> str:
    """A digest of the states of the default generators: of the CPU's, and of the present device's seed and offset."""
    digest = hashlib.blake2b(torch.get_rng_state().numpy().tobytes(), digest_size=8)
    if torch.cuda.is_initialized() and not torch.cuda.is_current_stream_capturing():  # type: ignore[no-untyped-call]
        generator = torch.cuda.default_generators[torch.cuda.current_device()]
        digest.update(f"{generator.initial_seed()} {generator.get_offset()}".encode())
    return digest.hexdigest()
