"""GradScaler and clipping: whether steps were skipped, at which scale, and whether gradients were clipped while still scaled."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch

from distdoctor.probe import sites, wrappers
from distdoctor.recording.layout import EventKind, UpdateFlag

if TYPE_CHECKING:
    from distdoctor.probe.gradients import GradientsStream


class Scalers:
    """Every GradScaler of this rank. On a device the scale is not read: skipped steps tell of it."""

    def __init__(self, stream: GradientsStream) -> None:
        self.stream = stream
        self.scale = 0.0
        self.skipped = 0
        self._scaled: weakref.WeakSet[Any] = weakref.WeakSet()  # whose gradients are scaled at present
        self._clipped = False
        self._sites: set[tuple[str, bool]] = set()

    def install(self) -> None:
        from torch.amp.grad_scaler import GradScaler

        wrappers.lay(GradScaler, "scale", self._around_scale)
        wrappers.lay(GradScaler, "unscale_", self._around_unscale)
        wrappers.lay(GradScaler, "step", self._around_step)
        wrappers.lay(GradScaler, "update", self._around_update)
        for name, word in (("clip_grad_norm_", "norm"), ("clip_grad_value_", "value")):
            wrappers.lay_everywhere((torch.nn.utils.clip_grad, torch.nn.utils), name, self._around_clip(word))

    @property
    def at_work(self) -> bool:
        """Whether gradients are scaled at present: then an infinity is an overflow, which the scaler deals with."""
        return bool(self._scaled)

    def flags(self) -> int:
        """What has happened since the last update."""
        flags = UpdateFlag.CLIPPED if self._clipped else 0
        self._clipped = False
        return int(flags)

    def _around_scale(self, original: Any) -> Any:
        @self.stream.guarded
        def scaled(scaler: Any) -> None:
            if scaler.is_enabled():
                self._scaled.add(scaler)

        def scale(scaler: Any, outputs: Any) -> Any:
            result = original(scaler, outputs)
            scaled(scaler)
            return result

        return scale

    def _around_unscale(self, original: Any) -> Any:
        @self.stream.guarded
        def unscaled(scaler: Any) -> None:
            self._scaled.discard(scaler)

        def unscale_(scaler: Any, optimizer: Any) -> Any:
            result = original(scaler, optimizer)
            unscaled(scaler)
            return result

        return unscale_

    def _around_step(self, original: Any) -> Any:
        @self.stream.guarded
        def stepped(scaler: Any, optimizer: Any, before: int | None) -> None:
            self._scaled.discard(scaler)
            if before is not None and self.stream.steps_of(optimizer) == before:
                self.skipped += 1
                self.stream.skipped(optimizer)

        count = self.stream.guarded(self.stream.steps_of)

        def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            before = count(optimizer)
            result = original(scaler, optimizer, *args, **kwargs)
            stepped(scaler, optimizer, before)
            return result

        return step

    def _around_update(self, original: Any) -> Any:
        @self.stream.guarded
        def updated(scaler: Any) -> None:
            scale = scaler._scale if scaler.is_enabled() else None  # a disabled one has none
            if scale is not None and scale.device.type == "cpu":
                self.scale = float(scale)

        def update(scaler: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(scaler, *args, **kwargs)
            updated(scaler)
            return result

        return update

    def _around_clip(self, word: str) -> Any:
        @self.stream.guarded
        def clipping() -> None:
            self._clipped = True
            scaled = bool(self._scaled)
            text = sites.user_site()
            if (text, scaled) not in self._sites and len(self._sites) < 16:
                self._sites.add((text, scaled))
                tape = self.stream.tape
                tape.event(EventKind.CLIPPED, word, site=tape.texts.id(text), a=int(scaled), b=self.stream.step + 1)

        def make(original: Any) -> Any:
            def clip(*args: Any, **kwargs: Any) -> Any:
                clipping()
                return original(*args, **kwargs)

            return clip

        return make
