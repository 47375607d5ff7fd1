"""Exceptions that a signal handler of the host's raises while ours is at work: they are the host's, and go on to it."""

from __future__ import annotations

import signal
from functools import partial
from types import CodeType
from typing import Any


def is_of_a_handler(error: BaseException) -> bool:
    """Whether a signal handler raised it: the handler is among the functions that the exception has passed. Never raises."""
    try:
        handlers = [code for one in signal.valid_signals() if (code := _code_of(signal.getsignal(one))) is not None]
        trace = error.__traceback__
        while trace is not None:
            if any(trace.tb_frame.f_code is code for code in handlers):
                return True
            trace = trace.tb_next
    except Exception:
        return False
    return False


def _code_of(handler: Any) -> CodeType | None:
    """The code of a handler written in Python: a function, a method, an object that can be called, or a part of these."""
    while isinstance(handler, partial):
        handler = handler.func
    if not callable(handler):
        return None
    function = getattr(handler, "__func__", handler)
    own = getattr(vars(type(handler)).get("__call__"), "__code__", None)
    code = getattr(function, "__code__", own)
    return code if isinstance(code, CodeType) else None
