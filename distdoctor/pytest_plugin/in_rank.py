"""What happens inside a rank: join the group, call the test, leave behind what became of it."""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import json
import logging
import os
import sys
import time
import traceback
import unittest
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import pytest
from _pytest.unittest import TestCaseFunction

from distdoctor.pytest_plugin import rank_coverage
from distdoctor.pytest_plugin.mark import RankMark
from distdoctor.pytest_plugin.preload import loaded_since
from distdoctor.pytest_plugin.refusals import ALL_NAMES

CLOCK_STOPPED = "somebody-is-at-the-debugger"
_DEBUGGER = "debugger.lock"
_QUIT = "the-debugger-was-quit"
_STREAMS = ((1, "stdout"), (2, "stderr"))
_COLLECTORS = (("threadexception", "collect_thread_exception"), ("unraisableexception", "collect_unraisable"))
_NO_FAILURE = (pytest.skip.Exception, pytest.xfail.Exception, unittest.SkipTest)


@dataclass
class RankOutcome:
    """What one rank leaves behind. `report`: pytest's report of what the function raised, as pytest itself serialises it."""

    rank: int
    at_ns: int = 0  # monotonic, when the function was over
    report: dict[str, Any] | None = None
    leave: str | None = None  # pytest.exit() was called
    interrupted: bool = False
    warned: list[tuple[str, str, str, int]] = field(default_factory=list)  # message, category, path, line
    properties: list[tuple[str, Any]] = field(default_factory=list)
    log: str = ""
    loaded: list[str] = field(default_factory=list)  # modules of installed libraries that only this rank has loaded
    subtests: list[dict[str, Any]] = field(default_factory=list)  # reports, as pytest serialises them

    @classmethod
    def read(cls, folder: Path, rank: int) -> RankOutcome | None:
        try:
            return cls(**json.loads(_outcome_file(folder, rank).read_text("utf-8")))
        except (OSError, ValueError, TypeError):
            return None


def _outcome_file(folder: Path, rank: int) -> Path:
    return folder / f"outcome-{rank:05d}.json"


@dataclass(frozen=True)
class RankTask:
    """One rank of one test. `store` is the file over which the ranks meet."""

    item: pytest.Function
    mark: RankMark
    folder: Path
    store: Path
    port: int
    recorded: bool

    def __call__(self, rank: int) -> NoReturn:
        """Never returns: whoever forked this process goes on elsewhere, with the same open files and the same finalizers."""
        code = 1
        try:
            code = InRank(self, rank).run()
        finally:
            _flush()
            os._exit(code)


class InRank:
    """This process, as a rank."""

    def __init__(self, task: RankTask, rank: int) -> None:
        self.task, self.rank, self.item = task, rank, task.item
        self.outcome = RankOutcome(rank)
        self._lock = -1
        self._debuggers = 0
        self.item.config.stash[RANK] = self
        _report_only_to(_Subtests(self.item.config, self.outcome.subtests), self.item.config)

    def run(self) -> int:
        """The exit code: 1 when the function has raised."""
        before = {*sys.modules}
        self._become()
        warned_before = len(self.item.stash[WARNED])
        with _output_to(self.task.folder, self.rank, self.item), _log() as log:
            measured = rank_coverage.start(self.task.folder, self.rank, self.item.config.invocation_params.dir)
            error = self._called()
            measured()
        self.outcome.log = log.text() if error is not None else ""
        self.outcome.warned = [
            (str(w.message), _named(w.category), w.filename, w.lineno) for w in self.item.stash[WARNED][warned_before:]
        ]
        self.outcome.loaded = loaded_since(before)
        self.outcome.properties = [*self.item.user_properties]
        self._leave_behind()
        ended_well = error is None or _is_verdict(error) or (self.outcome.report or {}).get("outcome") == "skipped"
        return int(not ended_well)

    def _become(self) -> None:
        size = self.task.mark.nproc
        places = {"RANK": self.rank, "LOCAL_RANK": self.rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
        os.environ.update({name: str(value) for name, value in places.items()})
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(self.task.port))
        if self.task.recorded:
            importlib.import_module("distdoctor.probe.start").start(str(self.task.folder))
        import torch

        torch.set_num_threads(1)

    def _called(self) -> BaseException | None:
        """What the function raised, reported as pytest reports it."""
        call = pytest.CallInfo.from_call(self._in_group, "call", reraise=None)
        self.outcome.at_ns = time.monotonic_ns()
        call.excinfo = call.excinfo or self._raised_in_unittest()
        if call.excinfo is None:
            return None
        error = call.excinfo.value
        if self.task.recorded and not isinstance(error, _NO_FAILURE) and not _is_verdict(error):
            importlib.import_module("distdoctor.probe.start").note_exception(error)
        if isinstance(error, pytest.exit.Exception):
            self.outcome.leave = str(error)
        elif isinstance(error, KeyboardInterrupt):
            self.outcome.interrupted = True
        else:
            self._report(call)
        return error

    def _report(self, call: pytest.CallInfo[None]) -> None:
        try:
            report = self.item.ihook.pytest_runtest_makereport(item=self.item, call=call)
            self.outcome.report = self._serialised(report)
            self._leave_behind()  # whoever sits at the debugger may kill this process
            if self.item.config.getoption("usepdb", False) and report.failed and not self._was_quit():
                self.item.ihook.pytest_exception_interact(node=self.item, call=call, report=report)
        except pytest.exit.Exception as leaving:
            self.outcome.leave = str(leaving)
            (self.task.folder / _QUIT).touch()
        except Exception:  # an exception whose text cannot be made
            assert call.excinfo is not None
            words = "".join(traceback.format_exception(call.excinfo.value))
            report = pytest.TestReport(self.item.nodeid, self.item.location, {}, "failed", words, "call")
            self.outcome.report = self._serialised(report)

    def _serialised(self, report: pytest.TestReport) -> dict[str, Any]:
        hook = self.item.config.hook
        data: dict[str, Any] = hook.pytest_report_to_serializable(config=self.item.config, report=report)
        return data | {"sections": [], "keywords": {}, "user_properties": []}

    def stop_the_clock(self) -> None:
        """Somebody sits at the debugger of this rank: the others wait for the terminal, and no time limit counts."""
        self._debuggers += 1
        if self._debuggers > 1:
            return
        self._lock = os.open(self.task.folder / _DEBUGGER, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        if self._was_quit():
            pytest.exit("Quitting debugger")
        (self.task.folder / CLOCK_STOPPED).write_text(str(self.rank))

    def _was_quit(self) -> bool:
        """Whether the session is to end, as the debugger of another rank was left by `q`."""
        return (self.task.folder / _QUIT).exists()

    def go_on(self) -> None:
        self._debuggers -= 1
        if self._debuggers == 0:
            (self.task.folder / CLOCK_STOPPED).unlink(missing_ok=True)
            os.close(self._lock)

    def _in_group(self) -> None:
        """The group is there while the fixtures that need it are made, the function runs, and they are taken down."""
        __tracebackhide__ = True
        import torch.distributed as dist

        if self.task.mark.join:
            _join(self.task, self.rank)
        stack = self.item.session._setupstate.stack
        before = {node: len(finalizers) for node, (finalizers, _) in stack.items()}
        try:
            self._call()
            _collect_from_hooks(self.item.config)
        finally:
            for node in reversed(before):
                while len(stack[node][0]) > before[node]:
                    stack[node][0].pop()()
        if self.task.mark.join and dist.is_initialized() and not getattr(self.item, "_excinfo", None):
            dist.destroy_process_group()

    def _call(self) -> None:
        __tracebackhide__ = True
        self.item.fixturenames = self.item.stash[ALL_NAMES]
        self.item._request._fillfixtures()
        if isinstance(self.item, TestCaseFunction):
            self._call_unittest(self.item)
            return
        names = self.item._fixtureinfo.argnames
        self.item.obj(**{name: self.item.funcargs[name] for name in names})

    def _call_unittest(self, item: TestCaseFunction) -> None:
        """setUp, the method, tearDown and the cleanups. What they raise is kept in `item._excinfo`."""
        __tracebackhide__ = True
        type(item).runtest(item)
        if item._explicit_tearDown is not None and not item._excinfo:
            item._explicit_tearDown()  # was put off because of --pdb

    def _raised_in_unittest(self) -> pytest.ExceptionInfo[BaseException] | None:
        """The first that the methods of a TestCase have raised."""
        kept = getattr(self.item, "_excinfo", None)
        return kept.pop(0) if kept else None

    def _leave_behind(self) -> None:
        path = _outcome_file(self.task.folder, self.rank)
        path.with_suffix(".new").write_text(json.dumps(asdict(self.outcome), default=str), "utf-8")
        path.with_suffix(".new").replace(path)


RANK = pytest.StashKey[InRank]()
"""In a rank: the rank."""
WARNED = pytest.StashKey[list[warnings.WarningMessage]]()
"""Where pytest collects the warnings of a test; those that a fixture or the test itself listens to do not come here."""


def list_of_warnings() -> list[warnings.WarningMessage]:
    """The list into which the warnings module records now: `catch_warnings(record=True)` puts its `append` in this place."""
    listener = getattr(warnings, "_showwarnmsg_impl", None)
    found = getattr(listener, "__self__", None)
    return found if isinstance(found, list) else []


def _collect_from_hooks(config: pytest.Config) -> None:
    """What threads and finalizers of this rank have raised becomes a warning, as after every call of a test."""
    for plugin, name in _COLLECTORS:
        collect = getattr(config.pluginmanager.get_plugin(plugin), name, None)
        if collect is not None:
            collect(config)


class _Subtests:
    """Hears the reports of subtests, which pytest logs while the test runs."""

    def __init__(self, config: pytest.Config, found: list[dict[str, Any]]) -> None:
        self._config, self._found = config, found

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._found.append(data | {"keywords": {}, "user_properties": []})


def _report_only_to(plugin: object, config: pytest.Config) -> None:
    """The terminal, the file of results and the line to the controller of xdist belong to the process that this is a fork of."""
    hook = config.hook.pytest_runtest_logreport
    for other in hook.get_hookimpls():
        hook._remove_plugin(other.plugin)
    config.pluginmanager.register(plugin)


def _join(task: RankTask, rank: int) -> None:
    import torch
    import torch.distributed as dist

    backend, size = task.mark.backend, task.mark.nproc
    if backend == "nccl":
        torch.cuda.set_device(rank)
    dist.init_process_group(backend, init_method=f"file://{task.store}", rank=rank, world_size=size)


def output_file(folder: Path, rank: int, stream: str) -> Path:
    return folder / f"{stream}-{rank:05d}.txt"


@contextlib.contextmanager
def _output_to(folder: Path, rank: int, item: pytest.Item) -> Iterator[None]:
    """Where pytest captures, what this rank prints goes to files of its own, unless a fixture has it."""
    capture = item.config.pluginmanager.getplugin("capturemanager")
    if capture is None or not capture.is_globally_capturing():
        yield
        return
    has_fixture = capture._capture_fixture is not None
    before = sys.stdout, sys.stderr
    for fd, name in _STREAMS:
        target = os.open(output_file(folder, rank, name), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(target, fd)
        os.close(target)
        if not has_fixture:
            setattr(sys, name, open(fd, "w", encoding="utf-8", errors="replace", buffering=1, closefd=False))  # noqa: SIM115
    try:
        yield
    finally:
        _flush()
        sys.stdout, sys.stderr = before


class _Log(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.setFormatter(logging.Formatter("%(levelname)-8s %(name)s:%(filename)s:%(lineno)d %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))

    def text(self) -> str:
        return "\n".join(self.lines)


@contextlib.contextmanager
def _log() -> Iterator[_Log]:
    """What the rank logs; pytest's own handler is in the memory of this fork only."""
    handler = _Log()
    logging.getLogger().addHandler(handler)
    try:
        yield handler
    finally:
        logging.getLogger().removeHandler(handler)


def _named(category: type[Warning]) -> str:
    return f"{category.__module__}:{category.__qualname__}"


def _is_verdict(error: BaseException) -> bool:
    """Whether pytest has failed the test for what it did not raise, as it does with unexpected successes of unittest."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return isinstance(error, pytest.fail.Exception) and all(
        str(frame.f_globals.get("__name__")).startswith("_pytest.") for frame in frames
    )


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
