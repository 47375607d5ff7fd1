"""Models, data and loaders from the names of their factories, ours and the user's alike."""

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
    if not callable(found) or isinstance(found, nn.Module):
        raise WrongUse(
            f"{reference} is no function, it is of type {type(found).__name__}",
            way_out="Name a function that makes and returns it: every rank calls it for its own.",
        )
    return found


def make_model(reference: str, shapes: Shapes) -> nn.Module:
    """A new model from its factory, which may or may not want to know the shapes of the data."""
    model = made(reference, shapes)
    if not isinstance(model, nn.Module):
        raise WrongUse(
            f"{reference} returned {type(model).__name__}", way_out="A model's factory returns a torch.nn.Module."
        )
    return model


def make_data(reference: str, path: str | None) -> tuple[Any, Any]:
    """A training set and a test set from their factory, which may or may not want a path."""
    both = made(reference, path)
    if not isinstance(both, tuple) or len(both) != 2 or not all(hasattr(one, "__getitem__") for one in both):
        raise WrongUse(
            f"{reference} returned {type(both).__name__}",
            way_out="The factory returns (training set, test set), both with __getitem__ and __len__.",
        )
    return both


def made(reference: str, *offered: Any) -> Any:
    """What the user's factory returns, called with as many of the offered values as it has positions for.

    WrongUse: it cannot be imported, wants more, raises, or exits.
    """
    try:
        function = imported(reference)
        return function(*offered[: _positions(function, reference, len(offered))])
    except WrongUse:
        raise
    except (Exception, SystemExit) as error:
        raise WrongUse(
            f"{reference} failed: {type(error).__name__}: {_said(error)}",
            way_out="Call it by itself in Python to see the whole traceback.",
        ) from error


def _positions(function: Callable[..., Any], reference: str, offered: int) -> int:
    """How many positional arguments it takes. WrongUse: it cannot be called with only those that are `offered`."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # written in C: it may take what there is
        return offered
    if any(one.kind is one.VAR_POSITIONAL for one in parameters):
        return offered
    positional = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    beyond = [*positional[offered:], *(one for one in parameters if one.kind is one.KEYWORD_ONLY)]
    unmet = [one.name for one in beyond if one.default is one.empty]
    if unmet:
        raise WrongUse(
            f"{reference} wants {', '.join(unmet)}, which distdoctor cannot know",
            way_out="Give it a default, or name a function that fills it in.",
        )
    return len(positional)


def _said(error: BaseException) -> str:
    """Its words, and the file and line at which it was raised; of a file that is no Python, where the parser stopped."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.msg} ({os.path.basename(error.filename)}:{error.lineno})"
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{error} ({os.path.basename(last.filename)}:{last.lineno})"
