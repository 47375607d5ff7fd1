"""Diagnostics for distributed PyTorch training.

Nothing is imported here: a rank must be able to load the probe alone. `diagnose`, `watch` and `phase` are those of
`distdoctor.api`, loaded when they are asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distdoctor.api import Report as Report
    from distdoctor.api import Watch as Watch
    from distdoctor.api import diagnose as diagnose
    from distdoctor.api import phase as phase
    from distdoctor.api import watch as watch

__all__ = ["Report", "Watch", "diagnose", "phase", "watch"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    from importlib import import_module

    return getattr(import_module("distdoctor.api"), name)
