"""Models and data from the names of their factories, ours and the user's alike."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

from torch import nn

from distdoctor.errors import WrongUse
from distdoctor.workloads.shapes import Shapes


def imported(reference: str) -> Callable[..., Any]:
    """The function that `package.module:function` names."""
    module, _, name = reference.partition(":")
    if os.getcwd() not in sys.path:  # as `python -m` has it: the module may lie beside whoever names it
        sys.path.insert(0, os.getcwd())
    try:
        found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        # A module that exists but imports something missing is the user's own error, with its own traceback.
        if not f"{module}.".startswith(f"{error.name}."):
            raise
        raise WrongUse(
            f"there is no module {error.name}, which {reference} names",
            way_out="Start from the folder that holds it, or install it.",
        ) from error
    except AttributeError as error:
        raise WrongUse(f"{module} has no {name}", way_out=f"Write {module}:NAME of a function in it.") from error
    return found


def make_model(reference: str, shapes: Shapes) -> nn.Module:
    """A new model from its factory, which may or may not want to know the shapes of the data."""
    model = _called(reference, shapes)
    if not isinstance(model, nn.Module):
        raise WrongUse(
            f"{reference} returned {type(model).__name__}", way_out="A model's factory returns a torch.nn.Module."
        )
    return model


def make_data(reference: str, path: str | None) -> tuple[Any, Any]:
    """A training set and a test set from their factory, which may or may not want a path."""
    both = _called(reference, path)
    if not isinstance(both, tuple) or len(both) != 2 or not all(hasattr(one, "__getitem__") for one in both):
        raise WrongUse(
            f"{reference} returned {type(both).__name__}",
            way_out="The factory returns (training set, test set), both with __getitem__ and __len__.",
        )
    return both


def _called(reference: str, argument: Any) -> Any:
    function = imported(reference)
    takes_one = any(
        parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD, parameter.VAR_POSITIONAL)
        for parameter in inspect.signature(function).parameters.values()
    )
    try:
        return function(argument) if takes_one else function()
    except WrongUse:
        raise
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{os.path.basename(last.filename)}:{last.lineno}"
        raise WrongUse(
            f"{reference} failed: {type(error).__name__}: {error} ({where})",
            way_out="Call it by itself in Python to see the whole traceback.",
        ) from error
