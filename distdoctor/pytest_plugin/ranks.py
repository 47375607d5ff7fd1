"""Run one test in its ranks, watch them, and raise unless all is well."""

from __future__ import annotations

import bdb
import contextlib
import os
import shutil
import socket
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from distdoctor.launch.forked_ranks import ForkedRanks
from distdoctor.pytest_plugin import rank_coverage, subtests
from distdoctor.pytest_plugin.in_rank import CLOCK_STOPPED, RankOutcome, RankTask
from distdoctor.pytest_plugin.mark import RankMark
from distdoctor.pytest_plugin.preload import Preload
from distdoctor.pytest_plugin.reports import RESULT, TestResult
from distdoctor.pytest_plugin.verdict import RankObserver
from distdoctor.recording.recording import RankEnd

_AFTER_A_FAILURE = 2.0
"""Seconds for the other ranks to end by themselves when one has failed: most learn it from their broken connections."""
_WATCHED_AFTER = 2.0
"""Seconds before anybody looks for a standstill: most tests are over by then."""
_POLL = 0.2


_PRELOAD = pytest.StashKey[Preload]()
TIMER = pytest.StashKey[Any]()
"""The settings of the timer that pytest-timeout has started for a test."""


class RanksFailed(bdb.BdbQuit):
    """The ranks have failed; their own reports say how. A debugger has nothing to find in this process, so it is not opened."""


def run(item: pytest.Function, mark: RankMark) -> None:
    """Call a test in its ranks. Raises unless all is well; `item.stash[RESULT]` has what there is to report then."""
    __tracebackhide__ = True
    preload = item.config.stash.setdefault(_PRELOAD, Preload())
    preload.load()
    if item.config.pluginmanager.hasplugin("terminalreporter"):
        item.config.get_terminal_writer().flush()
    with _folder(item) as folder, _timer_held(item, mark) as mark:
        result = item.stash[RESULT] = _run(item, mark, folder)
        item.user_properties.extend(p for p in result.properties() if p not in item.user_properties)
        preload.add(name for outcome in result.outcomes.values() for name in outcome.loaded)
        rank_coverage.collect(folder)
        _warn_again(result)
        result.keep_output(folder)
        result.judge(folder)
        subtests.log_again(item, result.outcomes)
    if result.leave is not None and not result.reports:
        pytest.exit(result.leave)
    item.session.shouldstop = result.leave or item.session.shouldstop  # once this failure is reported
    if not result.passed:
        raise RanksFailed(result.headline)


@contextlib.contextmanager
def _timer_held(item: pytest.Function, mark: RankMark) -> Iterator[RankMark]:
    """The mark within the limit of pytest-timeout, whose own timer would end this process before anybody looked at the ranks."""
    timer = item.stash.get(TIMER, None)
    if timer is None:
        yield mark
        return
    item.ihook.pytest_timeout_cancel_timer(item=item)
    try:
        yield replace(mark, timeout=min(mark.timeout, timer.timeout))
    finally:
        item.ihook.pytest_timeout_set_timer(item=item, settings=timer)


def _run(item: pytest.Function, mark: RankMark, folder: Path) -> TestResult:
    recorded = os.environ.get("DISTDOCTOR") != "0"
    with tempfile.TemporaryDirectory(prefix="distdoctor-store-") as scratch:
        task = RankTask(item, mark, folder, Path(scratch) / "store", _free_port(), recorded)
        ranks = ForkedRanks(mark.nproc, task)
        observer = RankObserver(item, mark, folder, ranks) if recorded else None
        try:
            late = _wait(mark, folder, ranks, observer)
            if late and observer is not None:
                observer.look()
        finally:
            ranks.close()
            if observer is not None:
                observer.stop()
    outcomes = {rank: outcome for rank in range(mark.nproc) if (outcome := RankOutcome.read(folder, rank))}
    result = TestResult(item, mark, outcomes, dict(ranks.ends), late)
    if observer is not None and not result.is_skip:
        result.diagnosis, result.stacks = observer.diagnosis(result), observer.stacks
        result.for_good = observer.is_hung
    return result


def _wait(mark: RankMark, folder: Path, ranks: ForkedRanks, observer: RankObserver | None) -> bool:
    """Whether ranks are late, or stand still for good: a failure ends the wait as well, a debugger suspends it."""
    begun = time.monotonic()
    deadline, grace = begun + mark.timeout, float("inf")
    while not ranks.wait(min(_POLL, deadline - time.monotonic())):
        now = time.monotonic()
        if (folder / CLOCK_STOPPED).exists():
            deadline, grace = max(deadline, now + mark.timeout), float("inf")
            continue
        if grace == float("inf") and any(map(_failed, ranks.ends.values())):
            grace = now + _AFTER_A_FAILURE
        if now >= grace:
            return False
        if observer is not None and now - begun >= _WATCHED_AFTER:
            observer.start()
            if observer.is_hung:
                return True
        if now >= deadline:
            return True
    return False


def _failed(end: RankEnd) -> bool:
    return bool(end.exit_code or end.signal)


@contextlib.contextmanager
def _folder(item: pytest.Function) -> Iterator[Path]:
    """Where the ranks are recorded: below pytest's own temporary folder, kept there when the test fails."""
    factory: pytest.TempPathFactory = item.config._tmp_path_factory  # type: ignore[attr-defined]
    folder = factory.mktemp("distdoctor", numbered=True)
    yield folder
    if item.stash[RESULT].passed or item.stash[RESULT].is_skip:
        shutil.rmtree(folder, ignore_errors=True)
        return
    for socket_path in folder.glob("*.sock"):
        socket_path.unlink(missing_ok=True)


def _free_port() -> int:
    """For tests that call init_process_group themselves. Nobody holds it until they do."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _warn_again(result: TestResult) -> None:
    """What the ranks have warned of, once."""
    told = dict.fromkeys((m, c, p, n) for outcome in result.outcomes.values() for m, c, p, n in outcome.warned)
    for message, category, path, line in told:
        module, _, name = category.partition(":")
        kind = getattr(sys.modules.get(module), name, None)
        kind = kind if isinstance(kind, type) and issubclass(kind, Warning) else UserWarning
        with contextlib.suppress(Exception):
            warnings.warn_explicit(message, kind, path, line)
