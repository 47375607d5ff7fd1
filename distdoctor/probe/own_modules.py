"""The user's modules that the program has imported. Their digests go into the trace: a condition that let ranks part often stands
in a file of which no call is ever recorded."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from itertools import islice
from types import ModuleType
from typing import TYPE_CHECKING

from distdoctor.probe import sites
from distdoctor.probe.interruptions import suppressed

if TYPE_CHECKING:
    from distdoctor.probe.context import Rank

MOST_FILES = 96  # the first that were imported; reading them takes some milliseconds, once


def install(rank: Rank) -> None:
    """Note them once the process group is made, and what is imported later when the interpreter shuts down."""
    trace = rank.trace
    assert trace is not None

    def note() -> None:
        with suppressed(OSError):  # the working folder may be gone
            for path in tuple(_imported()):
                trace.texts.note_source(path)

    rank.on_group.append(note)
    rank.at_end.append(rank.guarded(note))


def _imported() -> Iterator[str]:
    """The files below the folder of the script, or the working one. Whatever lies in `sys.modules`, no code of it is run."""
    script = vars(sys.modules["__main__"]).get("__file__")
    folders = {os.getcwd(), *((os.path.dirname(os.path.abspath(script)),) if script else ())}
    roots = tuple(os.path.join(folder, "") for folder in folders)
    modules = (module for module in tuple(sys.modules.values()) if issubclass(type(module), ModuleType))
    named = (vars(module).get("__file__") for module in modules)
    paths = (os.path.abspath(path) for path in named if isinstance(path, str) and path.endswith(".py"))
    own = (path for path in paths if path.startswith(roots) and sites.belongs_to_user(path))
    return islice(own, MOST_FILES)
