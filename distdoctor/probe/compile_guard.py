"""Keep torch.compile away from the probe's own functions: it would trace counters that change with every step."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar

import torch

from distdoctor.recording.source_line import PASSED_OVER

Function = TypeVar("Function", bound=Callable[..., Any])
_PROBE = os.path.dirname(__file__) + os.sep
_SKIPPED, _OURS = "_distdoctor_skipped", "_distdoctor_hook"


def skipped(function: Function) -> Function:
    """The function, marked so that its own frame is never compiled; what it calls still may be."""
    skip = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)
    if hasattr(skip, "skip_code"):
        skip.skip_code(function.__code__)  # type: ignore[union-attr]
        function.__dict__[_SKIPPED] = True
    return function


def passed_over(function: Function) -> Function:
    """The function, which is no frame for `warnings.warn(..., stacklevel=2)` below it: a warning of torch's then names the line
    that it names without us.

    The interpreter passes over frames of its import system, which it knows by these two words in the name of their file.
    """
    if isinstance(function, FunctionType) and function.__code__.co_filename.startswith(_PROBE):
        code = function.__code__
        if not code.co_filename.endswith(PASSED_OVER):
            function.__code__ = code.replace(co_filename=code.co_filename + PASSED_OVER)
            function.__globals__["__tracebackhide__"] = True  # pytest shows no frame of such a module
        if function.__dict__.get(_SKIPPED):
            skipped(function)
    return function


def uncompiled(function: Function) -> Function:
    """The function, with compilation switched off for it and for everything that it calls."""
    modules = sys.modules

    def call(*args: Any, **kwargs: Any) -> Any:
        if "torch._dynamo" not in modules:
            return function(*args, **kwargs)
        before = torch._C._dynamo.eval_frame.set_eval_frame(None)
        try:
            return function(*args, **kwargs)
        finally:
            torch._C._dynamo.eval_frame.set_eval_frame(before)

    functools.update_wrapper(call, function)
    return skipped(call)  # type: ignore[return-value]


def called_by_cpp(function: Function) -> Function:
    """The function, which C++ calls on the path of every collective: it is not compiled, and has to switch off compilation for
    what it calls. torch 2.7 and later, where `skip_code` is gone, would try to compile it."""
    frames: Any = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)
    function = skipped(function)
    if hasattr(frames, "set_code_exec_strategy"):
        action = frames._FrameAction
        frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(action.SKIP, action.DEFAULT))
    return function


def not_traced(function: Function) -> Function:
    """A hook of modules that leaves nothing of itself in a compiled graph: torch.compile inlines hooks, marked or not."""

    def hook(*args: Any) -> Any:
        if torch.compiler.is_compiling():
            return None
        return function(*args)

    hook.__dict__[_OURS] = True
    return hook  # type: ignore[return-value]


def silent_about_ours(guarded: Callable[..., Any]) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Around torch's question whether there are hooks of all modules, asked only to warn of them: ours go when they have seen
    what they wait for, and take no harm from a second call."""
    ours_alone = guarded(_ours_alone)

    def make(original: Callable[[], Any]) -> Callable[[], Any]:
        def has_any() -> Any:
            return original() and not ours_alone()

        return skipped(has_any)

    return make


def _ours_alone() -> bool:
    """Whether all hooks of all modules are ours."""
    modules = torch.nn.modules.module
    found = (
        modules._global_forward_pre_hooks,
        modules._global_forward_hooks,
        modules._global_backward_pre_hooks,
        modules._global_backward_hooks,
    )
    return all(_OURS in getattr(hook, "__dict__", ()) for hooks in found for hook in hooks.values())


def compiles() -> bool:
    """Whether torch.compile has been at work: a hook of all modules would be a reason to compile again."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return dynamo is not None and bool(sum(dynamo.counters["frames"].values()))


def watched() -> bool:
    """Whether somebody watches every operation (fake tensors, FLOP counters, a compiler): ours must not be among them."""
    return bool(torch._C._len_torch_dispatch_stack()) or torch.compiler.is_compiling()
