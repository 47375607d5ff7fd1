"""Uses of what torch has deprecated and will take away, seen when they happen. Each line is told once."""

from __future__ import annotations

import os
import sys
from types import FrameType
from typing import Any

from distdoctor.probe import sites, wrappers
from distdoctor.probe.context import Rank
from distdoctor.probe.interruptions import hand_on
from distdoctor.recording.trace.events import Deprecated

# (module, class or function) that torch 2.15 warns about; a class is seen when it is made. Only what import torch has loaded.
WATCHED = (
    ("torch.cuda.amp", "GradScaler"),
    ("torch.cuda.amp", "autocast"),
    ("torch.cpu.amp", "GradScaler"),
    ("torch.cpu.amp", "autocast"),
    ("torch.nn.utils", "clip_grad_norm"),
    ("torch.distributed", "all_gather_coalesced"),
    ("torch.distributed", "all_reduce_coalesced"),
    ("torch.distributed", "_all_gather_base"),
    ("torch.distributed", "_reduce_scatter_base"),
    ("torch.distributed", "all_gather_multigpu"),
)
LINES = 16


def install(rank: Rank) -> None:
    """Lay a wrapper around each, and look whether the job was started by a launcher that is going."""
    told: set[tuple[str, str]] = set()

    @rank.guarded
    def note(name: str, caller: FrameType) -> None:
        if not sites.is_users(caller):
            return  # torch's own code may still use them; that is not the user's business
        site = sites.site_of(caller)
        if rank.trace is not None and (name, site) not in told and len(told) < LINES:
            told.add((name, site))
            rank.trace.note(Deprecated(name), site=rank.trace.texts.id(site))

    for module_name, attribute in WATCHED:
        module = sys.modules.get(module_name)
        found = getattr(module, attribute, None)
        if isinstance(found, type):
            wrappers.lay(found, "__init__", _noting(f"{module_name}.{attribute}", note))
        elif callable(found):
            wrappers.lay(module, attribute, _noting(f"{module_name}.{attribute}", note))
    if rank.trace is not None and _old_launcher():
        rank.trace.note(Deprecated("torch.distributed.launch"))


def _noting(name: str, note: Any) -> Any:
    def make(original: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            note(name, sys._getframe(1))
            return original(*args, **kwargs)

        return call

    return make


def _old_launcher() -> bool:
    """Whether the parent of this rank is `python -m torch.distributed.launch`."""
    try:
        with open(f"/proc/{os.getppid()}/cmdline", "rb") as file:
            words = file.read().split(b"\0")
    except OSError as error:
        hand_on(error)
        return False
    return b"torch.distributed.launch" in words or any(w.endswith(b"torch/distributed/launch.py") for w in words)
