"""Lines that only ranks run count as covered, without any setting of coverage, and by all settings that are there."""

from __future__ import annotations

import contextlib
import copy
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

_NAME = "coverage-"


def start(folder: Path, rank: int, home: Path) -> Callable[[], None]:
    """In a rank: measure into a file of its own what the process that it was forked off measures. Returns how to end that.

    `home`: where pytest was started. A relative source is meant from there, wherever a fixture has gone since.
    """
    current = _current()
    if current is None:
        return lambda: None
    with _quiet():
        current.stop()
        with contextlib.chdir(home):
            own = _like(current, folder / f"{_NAME}{rank:05d}")
            own.start()
        with contextlib.suppress(AttributeError):  # pytest-cov --cov-context
            own.get_data().set_context(current._data._current_context)

        def end() -> None:
            with _quiet():
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
        with _quiet():
            data = coverage.CoverageData(str(path))
            data.read()
            current.get_data().update(data)


def _like(current: Any, data_file: Path) -> Any:
    """A Coverage that measures what this one does, as this one does."""
    import coverage

    own = coverage.Coverage(data_file=str(data_file), config_file=False, messages=False)
    own.config = copy.copy(current.config)
    own.config.data_file, own.config.parallel = str(data_file), False
    return own


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """A test fails for what it does, not for how it is measured. Coverage warns of files that were imported before it began to
    measure, as all of a rank's are, and a suite may turn warnings into errors."""
    with contextlib.suppress(Exception), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _current() -> Any:
    """The Coverage that measures this process, None where none does."""
    module = sys.modules.get("coverage")
    return module.Coverage.current() if module is not None else None
