"""Lines that only ranks run count as covered, without any setting of coverage."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

_SAME = ("run:branch", "run:source", "run:omit", "run:include")
_NAME = "coverage-"


def start(folder: Path, rank: int) -> Callable[[], None]:
    """In a rank: measure into a file of its own what the process that it was forked off measures. Returns how to end that."""
    current = _current()
    if current is None:
        return lambda: None
    import coverage

    with contextlib.suppress(Exception):
        current.stop()
        branch, source, omit, include = (current.get_option(name) for name in _SAME)
        own = coverage.Coverage(
            data_file=str(folder / f"{_NAME}{rank:05d}"),
            config_file=False,
            branch=branch,
            source=source or None,
            omit=omit or None,
            include=include or None,
            messages=False,
        )
        own.set_option("run:disable_warnings", ["no-data-collected", "module-not-imported", "module-not-measured"])
        own.start()

        def end() -> None:
            with contextlib.suppress(Exception):
                own.stop()
                own.save()

        return end
    return lambda: None


def collect(folder: Path) -> None:
    """In the process that the ranks were forked off: what they measured is part of what it has measured."""
    current = _current()
    if current is None:
        return
    import coverage

    for path in sorted(folder.glob(f"{_NAME}*")):
        with contextlib.suppress(Exception):
            data = coverage.CoverageData(str(path))
            data.read()
            current.get_data().update(data)


def _current() -> Any:
    """The Coverage that measures this process, None where none does."""
    module = sys.modules.get("coverage")
    return module.Coverage.current() if module is not None else None
