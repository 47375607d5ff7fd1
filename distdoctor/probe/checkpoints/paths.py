"""The path of what a call was given to write or read."""

from __future__ import annotations

import os
from typing import Any

from distdoctor.probe.interruptions import hand_on


def absolute(file: Any) -> str:
    """The path of what torch.save was given; "" of a buffer, an open file without a name, what does not tell, and a relative
    path in a working folder that was removed."""
    text = _named(file)
    try:
        return os.path.abspath(text) if text and not text.startswith("<") else ""
    except OSError as error:
        hand_on(error)
        return ""


def _named(file: Any) -> str:
    """What the user's object calls itself; "" also where asking it raises."""
    try:
        path = file if isinstance(file, (str, os.PathLike)) else getattr(file, "name", None)
        text = os.fspath(path) if isinstance(path, (str, os.PathLike)) else ""
        return text if isinstance(text, str) else ""
    except Exception as error:
        hand_on(error)
        return ""
