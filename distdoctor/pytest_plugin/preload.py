"""What ranks have imported is imported here, once, so that the ranks of later tests are forked with it.

A test that imports an installed library has it in every later test of the same process, as under pytest alone. Modules of the
user's own are left to the ranks: they may hold state that each test expects to be fresh.
"""

from __future__ import annotations

import contextlib
import os
import sys
import sysconfig
import threading
import warnings
from collections.abc import Container, Iterable
from importlib import import_module

import pytest

_ALWAYS = (
    "torch.distributed",
    "distdoctor.probe.start",
    "distdoctor.probe.checkpoints.around_torch",
    "encodings.ascii",
)
"""Loaded by every rank; nothing is recorded in this process."""
_INSTALLED = tuple({f"{sysconfig.get_path(name)}{os.sep}" for name in ("purelib", "platlib")})
# torch may be the system's or the user's, and pytest in a virtual environment over it.
_SITES = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))


class Preload:
    """Modules to import before the next fork."""

    def __init__(self) -> None:
        self._waiting: list[str] = [*_ALWAYS]
        self._known: set[str] = set()

    def add(self, names: Iterable[str]) -> None:
        """Modules that ranks have imported, in their order."""
        self._waiting.extend(dict.fromkeys(name for name in names if name not in self._known))

    def load(self) -> None:
        """Import what is waiting, and what cannot be imported here never again."""
        waiting, self._waiting = self._waiting, []
        self._known.update(waiting)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the rank has been warned
            for name in waiting:
                with contextlib.suppress(Exception, pytest.skip.Exception):
                    import_module(name)


def loaded_since(before: Container[str]) -> list[str]:
    """In a rank: the modules of installed libraries that it has imported; torch's alone (DDP imports 900 on its first use) where
    threads run or CUDA is in use now, as an import may be what has started these, and they do not survive a fork."""
    new = [name for name, module in [*sys.modules.items()] if name not in before and _is_installed(module)]
    if threading.active_count() > 1 or sys.modules["torch"].cuda.is_initialized():
        return [name for name in new if name.startswith("torch.")]
    return new


def _is_installed(module: object) -> bool:
    spec = getattr(module, "__spec__", None)
    origin = str(getattr(spec, "origin", ""))
    return origin.startswith(_INSTALLED) or any(site in origin for site in _SITES)
