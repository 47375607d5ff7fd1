"""`package.module:function` on the command line, looked at before any rank starts, without importing it."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distdoctor.errors import WrongUse

if TYPE_CHECKING:
    from distdoctor.workloads.request import TrainingRequest


def try_factories_of(request: TrainingRequest, values: Mapping[str, Any], ranks: int) -> None:
    """Raise WrongUse where the user's own model or data cannot be made, or the model cannot be cut as it has to be, before any
    rank is started."""
    from distdoctor.launch.factories import parts_of_model, try_factories

    made = {"model": request.model, "data": request.data}
    own = {option: reference for option, reference in made.items() if values.get(f"training_{option}") == reference}
    for option, reference in own.items():
        require_function(f"--{option}", reference)
    if own or request.checkpoint_activations or parts_of_model(request, ranks):
        try_factories(request, ranks)


def require_function(option: str, reference: str) -> None:
    """WrongUse: it is not of that form, there is no such module, or its source has no such name."""
    found = re.fullmatch(r"([A-Za-z_][\w.]*):([A-Za-z_]\w*)", reference)
    if found is None:
        raise WrongUse(
            f"{option} {reference} names no function",
            way_out=f"Write package.module:function, for example {option} train:make_loaders.",
        )
    module, name = found.groups()
    source = _source_of(module)
    if source is None:
        raise WrongUse(
            f"there is no module {module}, which {option} {reference} names",
            way_out="Start from the folder that holds it, or install it.",
        )
    names = _names_in(source)
    if names is not None and name not in names:
        raise WrongUse(f"{source} has no {name}", way_out=f"Write {module}:NAME of a function in it.")


def _source_of(module: str) -> str | None:
    """Where the module lies; "" where it has no source file; None where there is none."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError, AttributeError):
        return None
    return None if spec is None else spec.origin or ""


def _names_in(source: str) -> set[str] | None:
    """The names that a source file binds at its top level; None where that cannot be told without running it."""
    try:
        tree = ast.parse(Path(source).read_text("utf-8"))
    except (OSError, ValueError, SyntaxError):
        return None
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.alias) and node.name == "*":
            return None
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.alias):
            names.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return None if "__getattr__" in names else names
