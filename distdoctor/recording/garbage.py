"""Garbage collection, where it would look through millions of objects that are all in use."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_garbage_collection(wanted: bool = True) -> Iterator[None]:
    """What is read or examined is many small objects that all go at once: looking among them for cycles again and again costs a
    fifth of the time and more. `wanted`: whether there are so many."""
    was_on = wanted and gc.isenabled()
    if was_on:
        gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
