"""What plugins and torch offer to be completed, remembered: a shell asks at every TAB, and importing them takes seconds.

It lies in `$XDG_CACHE_HOME/distdoctor/completion.json` (usually below ~/.cache), with the times of the files that it was read
off, and is read off them again once one of them has changed.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from distdoctor.recording.files import write_whole


def remembered(kind: str, make: Callable[[], Any], sources: Callable[[], Iterable[Path]]) -> Any:
    """What `make` returns, as JSON keeps it; the one of an earlier call where nothing that it was made of has changed.

    `sources`: the files and folders that it was made of, asked once it is made. What is installed is looked at besides.
    """
    place = _place()
    kept = _read(place)
    known = kept.get(kind)
    if isinstance(known, dict) and known.get("path") == sys.path and _unchanged(known.get("sources")):
        return known["value"]
    value = json.loads(json.dumps(make()))
    times = {str(path): _changed_ns(path) for path in (*sources(), *map(Path, sys.path))}
    kept[kind] = {"path": sys.path, "sources": times, "value": value}
    with contextlib.suppress(OSError):  # then it is made again the next time
        place.parent.mkdir(parents=True, exist_ok=True)
        write_whole(place, json.dumps(kept))
    return value


def files_of(modules: Iterable[str]) -> list[Path]:
    """The files of these imported modules, and of packages all modules and folders below them."""
    found: list[Path] = []
    for name in modules:
        file = getattr(sys.modules.get(name), "__file__", None)
        if file is None:
            continue
        if os.path.basename(file) != "__init__.py":
            found.append(Path(file))
            continue
        for folder, inner, names in os.walk(os.path.dirname(file)):
            inner[:] = [one for one in inner if one != "__pycache__"]
            found += [Path(folder), *(Path(folder, one) for one in names if one.endswith(".py"))]
    return found


def _place() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(cache, "distdoctor", "completion.json")


def _read(place: Path) -> dict[str, Any]:
    try:
        kept = json.loads(place.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return kept if isinstance(kept, dict) else {}


def _unchanged(times: Any) -> bool:
    return isinstance(times, dict) and all(_changed_ns(path) == time for path, time in times.items())


def _changed_ns(path: str | Path) -> int:
    """0 where there is none."""
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0
