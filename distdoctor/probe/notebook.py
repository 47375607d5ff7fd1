"""Cells of a notebook and inputs of IPython: what they are called there, where Python knows a made-up file."""

from __future__ import annotations

import linecache
import sys
from typing import Any

from distdoctor.recording.source_line import cell_path
from distdoctor.recording.trace.redaction import redacted_source


def cell_of(path: str) -> str:
    """`In [3]` for the code that IPython compiled as `path` last, "" where it is no cell."""
    number = _executed().get(path)
    return cell_path(number) if isinstance(number, int) else ""


def cell_texts() -> dict[str, str]:
    """The source of each cell that this process has run, by its path in a recording, without the secrets in it."""
    cells = {cell_path(number): "".join(linecache.getlines(path)) for path, number in _executed().items()}
    return {name: redacted_source(text) for name, text in cells.items()}


def _executed() -> dict[str, Any]:
    """What IPython compiled, by file name, and the number of the input. {} outside of IPython, which is not imported here."""
    get_shell = getattr(sys.modules.get("IPython"), "get_ipython", None)
    compiler = getattr(get_shell() if callable(get_shell) else None, "compile", None)
    known = getattr(compiler, "_filename_map", None)
    return known if isinstance(known, dict) else {}
