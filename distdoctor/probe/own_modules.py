"""The user's modules that the program has imported. Their digests go into the trace: a condition that let ranks part often stands
in a file of which no call is ever recorded."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from distdoctor.probe import sites

if TYPE_CHECKING:
    from distdoctor.probe.context import Rank

MOST_FILES = 96  # the first that were imported; reading them takes some milliseconds, once


def install(rank: Rank) -> None:
    """Note them once the process group is made, and what is imported later when the interpreter shuts down."""
    trace = rank.trace
    assert trace is not None

    def note() -> None:
        for path in _imported():
            trace.texts.note_source(path)

    rank.on_group.append(note)
    rank.at_end.append(rank.guarded(note))


def _imported() -> Iterator[str]:
    """The files below the folder of the script, or the working one."""
    script = getattr(sys.modules.get("__main__"), "__file__", None) or ""
    roots = tuple({os.path.join(folder, "") for folder in (os.path.dirname(os.path.abspath(script)), os.getcwd())})
    found = 0
    for module in tuple(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if not isinstance(path, str) or not path.endswith(".py"):
            continue
        path = os.path.abspath(path)
        if path.startswith(roots) and sites.belongs_to_user(path):
            yield path
            found += 1
            if found == MOST_FILES:
                return
