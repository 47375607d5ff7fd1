"""GradScaler and clipping: whether steps were skipped, at which scale, and whether gradients were clipped while still scaled."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from types import GeneratorType
from typing import Any

import torch
from torch import Tensor, nn

from distdoctor.probe import sites, wrappers
from distdoctor.probe.gradients.context import GradientsContext
from distdoctor.probe.tensors.digests import local, norms_of
from distdoctor.recording.trace.events import ClipNorm, Clipped
from distdoctor.recording.trace.layout import UpdateFlag

MOST_SITES = 16  # lines that clip
NORMS = 12  # clippings whose norms are noted
NORMS_OF_A_STEP = 4  # of these: micro-batches and models that are clipped one by one must not hide the next steps


@dataclass
class ClippedWhileScaled:
    """A clipping while a scaler was at work on some gradients: of these, if the scaler has to do with what was clipped."""

    word: str
    text: str
    step: int
    clipped: weakref.ref[Tensor] | None  # one of the parameters; None: not known
    scalers: weakref.WeakSet[Any]


class Scalers:
    """Every GradScaler of this rank. On a device the scale is not read: skipped steps tell of it."""

    def __init__(self, context: GradientsContext, steps_of: Callable[[Any], int], skips: Callable[[Any], None]) -> None:
        """`steps_of(optimizer)`: how often it has stepped; `skips(optimizer)` is called when its step was left out."""
        self.context, self._steps_of, self._skips = context, steps_of, skips
        self.scale = 0.0
        self.skipped = 0
        self._scaled: weakref.WeakSet[Any] = weakref.WeakSet()  # whose gradients are scaled at present
        self._clipped = False
        self._sites: set[tuple[str, bool]] = set()
        self._while_scaled: list[ClippedWhileScaled] = []
        self._norms = 0
        self._of_step = (0, 0)  # a step, and how many norms of it are noted

    def install(self) -> None:
        from torch.amp.grad_scaler import GradScaler

        wrappers.lay(GradScaler, "scale", self._around_scale)
        wrappers.lay(GradScaler, "unscale_", self._around_unscale)
        wrappers.lay(GradScaler, "step", self._around_step)
        wrappers.lay(GradScaler, "update", self._around_update)
        for name, word in (("clip_grad_norm_", "norm"), ("clip_grad_value_", "value")):
            wrappers.lay_everywhere((torch.nn.utils.clip_grad, torch.nn.utils), name, self._around_clip(word))
        # The second half of clipping, for those who take get_total_norm first.
        wrappers.lay(torch.nn.utils, "clip_grads_with_norm_", self._around_clip("norm", given=2))

    @property
    def at_work(self) -> bool:
        """Whether gradients are scaled at present: then an infinity is an overflow, which the scaler deals with."""
        return bool(self._scaled)

    def flags(self) -> int:
        """What has happened since the last update."""
        flags = UpdateFlag.CLIPPED if self._clipped else 0
        self._clipped = False
        return int(flags)

    def _note_norm(self, norm: Tensor, unaveraged: bool, limit: float) -> None:
        """Whose norm it is: of a DTensor that of all ranks, else what this rank has computed; read when a device has it."""
        trace, step = self.context.trace, self.context.step + 1
        noted = self._of_step[1] if self._of_step[0] == step else 0
        if self._norms >= NORMS or noted >= NORMS_OF_A_STEP:
            return
        self._norms, self._of_step = self._norms + 1, (step, noted + 1)
        site, whole = trace.texts.id(sites.user_site()), local(norm) is not norm
        reading = norms_of([norm])

        def write() -> None:
            trace.note(ClipNorm(whole, step, float(reading.values()[0]), unaveraged, limit), site=site)

        self.context.later(write, reading)

    def _unaveraged(self, clipped: nn.Module | Tensor | None) -> bool:
        """Whether a DistributedDataParallel reduces these, and its last forward was one after which it does not."""
        if clipped is None:
            return False
        for one in self.context.agreement.wrapped:
            wrapper = one.module()
            if wrapper is None or getattr(wrapper, "require_forward_param_sync", True):
                continue  # what torch itself sets to False in a forward under no_sync
            if clipped is wrapper or id(_parameter_of(clipped)) in one.reduced:
                return True
        return False

    def _note_clipped(self, word: str, text: str, step: int, *, scaled: bool) -> None:
        if (text, scaled) not in self._sites and len(self._sites) < MOST_SITES:
            self._sites.add((text, scaled))
            trace = self.context.trace
            trace.note(Clipped(word, scaled, step), site=trace.texts.id(text))

    def _tell_of(self, scaler: Any, optimizer: Any) -> None:
        """A scaler unscales the gradients of an optimizer: what was clipped of these before was still scaled. What none of the
        scaler's optimizers holds has nothing to do with it."""
        waiting = self._while_scaled
        held = {id(p) for group in optimizer.param_groups for p in group["params"]} if waiting else set()
        for one in waiting:
            if scaler in one.scalers and (one.clipped is None or id(one.clipped()) in held):
                self._note_clipped(one.word, one.text, one.step, scaled=True)

    def _around_scale(self, original: Any) -> Any:
        @self.context.guarded
        def scaled(scaler: Any) -> None:
            if scaler.is_enabled():
                self._scaled.add(scaler)

        def scale(scaler: Any, outputs: Any) -> Any:
            result = original(scaler, outputs)
            scaled(scaler)
            return result

        return scale

    def _around_unscale(self, original: Any) -> Any:
        @self.context.guarded
        def unscaled(scaler: Any, optimizer: Any) -> None:
            self._scaled.discard(scaler)
            self._tell_of(scaler, optimizer)

        def unscale_(scaler: Any, optimizer: Any) -> Any:
            result = original(scaler, optimizer)
            unscaled(scaler, optimizer)
            return result

        return unscale_

    def _around_step(self, original: Any) -> Any:
        @self.context.guarded
        def stepped(scaler: Any, optimizer: Any, before: int | None) -> None:
            self._scaled.discard(scaler)
            self._tell_of(scaler, optimizer)
            if before is not None and self._steps_of(optimizer) == before:
                self.skipped += 1
                self._skips(optimizer)

        count = self.context.guarded(self._steps_of)

        def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            before = count(optimizer)
            result = original(scaler, optimizer, *args, **kwargs)
            stepped(scaler, optimizer, before)
            return result

        return step

    def _around_update(self, original: Any) -> Any:
        @self.context.guarded
        def updated(scaler: Any) -> None:
            self._while_scaled = [one for one in self._while_scaled if scaler not in one.scalers]
            scale = scaler._scale if scaler.is_enabled() else None  # a disabled one has none
            if scale is not None and scale.device.type == "cpu":
                self.scale = float(scale)

        def update(scaler: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(scaler, *args, **kwargs)
            updated(scaler)
            return result

        return update

    def _around_clip(self, word: str, given: int | None = None) -> Any:
        """`given`: the place of the argument `total_norm`; without it the norm is what the function returns."""

        @self.context.guarded
        def clipping(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self._clipped = True
            scaled = bool(self._scaled)
            text = sites.user_site()
            if (text, scaled) in self._sites or len(self._sites) >= MOST_SITES:
                return
            step = self.context.step + 1
            if not scaled:
                self._note_clipped(word, text, step, scaled=False)
            elif len(self._while_scaled) < MOST_SITES:
                one = _parameter_of(_one_of(_argument(args, kwargs, 0, "parameters")))
                held = weakref.ref(one) if one is not None else None
                self._while_scaled.append(ClippedWhileScaled(word, text, step, held, weakref.WeakSet(self._scaled)))

        @self.context.guarded
        def unaveraged(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
            return self._unaveraged(_one_of(_argument(args, kwargs, 0, "parameters")))

        @self.context.guarded
        def clipped(result: Any, args: tuple[Any, ...], kwargs: dict[str, Any], waits: bool | None) -> None:
            norm = result if given is None else _argument(args, kwargs, given, "total_norm")
            parameters, limit = _argument(args, kwargs, 0, "parameters"), _argument(args, kwargs, 1, "max_norm")
            if word == "norm" and isinstance(norm, Tensor) and not _changes_nothing(parameters, limit):
                self._note_norm(norm, bool(waits), float(limit) if isinstance(limit, int | float) else 0.0)

        def make(original: Any) -> Any:
            def clip(*args: Any, **kwargs: Any) -> Any:
                clipping(args, kwargs)
                waits = unaveraged(args, kwargs)
                result = original(*args, **kwargs)
                clipped(result, args, kwargs, waits)
                return result

            return clip

        return make


def _argument(args: tuple[Any, ...], kwargs: dict[str, Any], place: int, name: str) -> Any:
    return args[place] if len(args) > place else kwargs.get(name)


def _one_of(clipped: Any) -> nn.Module | Tensor | None:
    """A parameter of those that are to be clipped; the module, where they are its `parameters()`, of which nothing is taken."""
    if isinstance(clipped, GeneratorType):
        owner = clipped.gi_frame.f_locals.get("self") if clipped.gi_frame is not None else None
        return owner if isinstance(owner, nn.Module) else None
    some = (clipped,) if isinstance(clipped, Tensor) else clipped if isinstance(clipped, list | tuple) else ()
    return next((one for one in some if isinstance(one, Tensor)), None)


def _parameter_of(clipped: nn.Module | Tensor | None) -> Tensor | None:
    return next(clipped.parameters(), None) if isinstance(clipped, nn.Module) else clipped


def _changes_nothing(clipped: Any, limit: Any) -> bool:
    """Whether a call of clip_grad_norm_ leaves every parameter alone: it only measures, or it is given other tensors."""
    some = (clipped,) if isinstance(clipped, Tensor) else clipped if isinstance(clipped, list | tuple) else ()
    others = bool(some) and not any(isinstance(one, nn.Parameter) for one in some)
    return others or (isinstance(limit, float) and math.isinf(limit))
