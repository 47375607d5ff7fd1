"""What random state each rank has when backward begins, where dropout or the loop draws from it; and checkpoints that do not
restore it."""

from __future__ import annotations

import hashlib
import sys
from typing import Any

import torch
import torch.utils.checkpoint
from torch import Tensor, nn

from distdoctor.probe import sites, wrappers
from distdoctor.probe.compile_guard import watched
from distdoctor.probe.gradients.context import GradientsContext
from distdoctor.probe.gradients.loss_graph import NODES, nodes_behind, saved_by
from distdoctor.probe.tensors.digests import digest, is_readable
from distdoctor.recording.trace.events import NAME_SEPARATOR, BackwardRng, UnkeptRng

LOOKS = 6  # backward passes; equal or unequal states show in the first ones
WINDOWS = 4  # of as many passes each: one more whenever the generator was seeded anew or given another state
LEAST_MASK, SAMPLED = 64, 256  # elements
MOST_BYTES = 16 << 20  # of what is digested


class RngStates:
    """Notes digests of the generators' states. Nothing is drawn, and no device is waited for."""

    def __init__(self, context: GradientsContext) -> None:
        self.context = context
        self._dropout: str | None = None
        self._calls = 0
        self._state = ""
        self._rate = 0.0
        self._until, self._windows = LOOKS, 1  # the last backward pass that is looked at
        self._seed: int | None = None
        self._set_at = 0  # text id of the line that has given the generator its state

    def install(self) -> None:
        wrappers.lay(torch.utils.checkpoint, "checkpoint", self._around_checkpoint)
        wrappers.lay_everywhere((torch.random, torch), "set_rng_state", self._around_set)

    def backward_begins(self, count: int, root: Any) -> None:
        """Backward pass number `count` of this rank begins, at `root`."""
        seed = torch.default_generator.initial_seed()
        if self._seed not in (None, seed):
            self._look_again(count - 1)
        self._seed = seed
        if count > self._until or watched():
            return
        if not self._dropout:
            self._dropout = self._active_dropout()
        before, self._state = self._state, _state()
        if self._dropout or (before and before != self._state):
            given = given_to_dropout(root, self._rate) if self._dropout else ""
            self.context.trace.note(
                BackwardRng(self._state, f"{self._dropout}{NAME_SEPARATOR}{given}".rstrip("\0"), count),
                site=self._set_at,
            )

    def _look_again(self, after: int) -> None:
        """The generator goes on from another state: look at the next passes, unless the present ones are looked at anyway."""
        if after >= self._until and self._windows < WINDOWS:
            self._windows += 1
            self._until, self._state = after + LOOKS, ""

    def _active_dropout(self) -> str:
        for root in self.context.trees.roots():
            for name, module in root.named_modules():
                rate = module.p if isinstance(module, nn.modules.dropout._DropoutNd) else 0.0
                if rate and module.training:
                    self._rate = rate
                    return f"{name} ({type(module).__name__} {rate:g})"
        return ""

    def _around_set(self, original: Any) -> Any:
        @self.context.guarded
        def was_set(frame: Any) -> None:
            if not frame.f_globals.get("__name__", "").startswith("torch."):  # it restores what it has kept
                self._set_at = self.context.trace.texts.id(sites.user_site())
                self._seed = torch.default_generator.initial_seed()
                self._look_again(self.context.backwards)

        def set_rng_state(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            was_set(sys._getframe(1))
            return result

        return set_rng_state

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


def given_to_dropout(root: Any, rate: float) -> str:
    """A digest of what the operation before the last dropout of this rate has kept for backward: ranks that gave the same to it
    have equal ones. "" where there is none, or where it has kept nothing. On the CPU."""
    start = getattr(root, "grad_fn", None)
    if start is None or not 0 < rate < 1:
        return ""
    for number, node in enumerate(nodes_behind(start)):
        if number >= NODES:
            return ""
        if node.name() == "MulBackward0" and any(_is_mask(saved, rate) for saved in saved_by(node)):
            before = next((one for one, _ in node.next_functions if one is not None), None)
            kept = [one for one in saved_by(before) if _is_plain(one) and one.nbytes <= MOST_BYTES] if before else []
            words = " ".join(f"{digest(one):016x}" for one in kept)
            return hashlib.blake2b(words.encode(), digest_size=8).hexdigest() if words else ""
    return ""


def _is_mask(saved: Tensor, rate: float) -> bool:
    """Whether a tensor holds nothing but zeros and the factor by which a dropout makes up for them."""
    if not _is_plain(saved) or not saved.is_floating_point() or saved.numel() < LEAST_MASK:
        return False
    some = saved.detach().reshape(-1)[:SAMPLED].double()
    zero, kept = some == 0, (some - 1 / (1 - rate)).abs() < 1e-2
    return bool((zero | kept).all()) and bool(zero.any()) and bool(kept.any())


def _is_plain(saved: Tensor) -> bool:
    """Whether a tensor can be read here and now, without anybody else: a DTensor would ask the other ranks."""
    return type(saved) in (Tensor, nn.Parameter) and saved.device.type == "cpu" and is_readable(saved)


def _state() -> str:
    """A digest of the states of the default generators: of the CPU's, and of the present device's seed and offset."""
    digest = hashlib.blake2b(torch.get_rng_state().numpy().tobytes(), digest_size=8)
    if torch.cuda.is_initialized() and not torch.cuda.is_current_stream_capturing():  # type: ignore[no-untyped-call]
        generator = torch.cuda.default_generators[torch.cuda.current_device()]
        digest.update(f"{generator.initial_seed()} {generator.get_offset()}".encode())
    return digest.hexdigest()
