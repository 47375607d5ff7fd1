"""The probe's door where torch's own is shut: put on PYTHONPATH of jobs that run with TORCH_DEVICE_BACKEND_AUTOLOAD=0.

Python imports the first `sitecustomize` that it finds, so this one first runs the one that it hides, then waits for torch.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from types import ModuleType
from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))


def _run_the_hidden_one() -> None:
    """Run the user's own sitecustomize, as Python would have done without us."""
    path = [entry for entry in sys.path if os.path.abspath(entry or ".") != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", path)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


class _AfterTorch(importlib.abc.MetaPathFinder):
    """Finds torch as everybody does, and opens the door when its import is done."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        if spec is None or spec.loader is None:
            return spec
        run = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            _open_the_door()

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _open_the_door() -> None:
    try:
        from distdoctor.probe.seam import autoload

        autoload()
    except Exception:
        return


def _wait_for_torch() -> None:
    """Ahead of every finder that is there: one that finds torch by itself, as tracing tools do, would hide ours."""
    if not os.environ.get("DISTDOCTOR_PROBE") or os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD") != "0":
        return
    if "torch" in sys.modules:
        _open_the_door()
    else:
        sys.meta_path.insert(0, _AfterTorch())


try:
    _run_the_hidden_one()
finally:
    _wait_for_torch()
