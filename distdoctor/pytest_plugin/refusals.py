"""What cannot run in ranks is refused in one sentence; fixtures that need the process group wait for the ranks."""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from _pytest.unittest import TestCaseFunction

from distdoctor.errors import WrongUse
from distdoctor.pytest_plugin.mark import MARK, counts_of

IN_RANK = "dist"
"""The fixture that only ranks have, and with it every fixture that asks for it."""
ALL_NAMES = pytest.StashKey[list[str]]()
"""The fixtures of a test with those that wait for the ranks."""
_OF_DESCRIPTORS = ("capfd", "capfdbinary")
_NO_GROUP = "Default process group has not been initialized"


def refuse(item: pytest.Item) -> None:
    """WrongUse: this test cannot run in ranks."""
    if not isinstance(item, pytest.Function):
        raise WrongUse(f"{item.name} is no test function", way_out=f"Take @pytest.mark.{MARK} off it.")
    is_async = inspect.iscoroutinefunction(item.obj) or inspect.isasyncgenfunction(item.obj)
    if is_async and not _has_loop(item):
        raise WrongUse(
            f"{item.name} is an async function, and ranks run no event loop",
            way_out="Let a plain function call asyncio.run(...).",
        )
    if isinstance(item, TestCaseFunction) and counts_of(item):
        raise WrongUse(
            f"{item.name} is a method of a unittest.TestCase, which pytest runs once and not for several numbers of ranks",
            way_out="Give one number, or make it a function.",
        )
    for name in _OF_DESCRIPTORS:
        if name in item.fixturenames:
            raise WrongUse(
                f"the fixture {name} reads file descriptors that all ranks share",
                way_out="Use capsys, of which each rank has its own.",
            )
    if "--trace" in item.config.invocation_params.args:
        raise WrongUse("--trace steps through one process", way_out="Put breakpoint() where a rank is to stop.")
    cuda = sys.modules.get("torch.cuda")
    if cuda is not None and cuda.is_initialized():
        raise WrongUse(
            "CUDA has been used in the pytest process, and cannot be used again in ranks forked off it",
            way_out=f"Run the tests that need it apart: `pytest -m {MARK}` and `pytest -m 'not {MARK}'`.",
        )


def _has_loop(item: pytest.Function) -> bool:
    """A method of unittest.IsolatedAsyncioTestCase: unittest runs it in a loop of its own."""
    loops = sys.modules.get("unittest.async_case")
    return loops is not None and item.cls is not None and issubclass(item.cls, loops.IsolatedAsyncioTestCase)


@contextlib.contextmanager
def without_group(item: pytest.Item) -> Iterator[None]:
    """While the test is set up here, it is without the fixtures that need the group of the ranks."""
    if not isinstance(item, pytest.Function):
        yield
        return
    names = list(item.fixturenames)
    item.stash[ALL_NAMES] = names
    item.fixturenames = [name for name in names if not _needs_group(item, name, set())]
    try:
        yield
    finally:
        item.fixturenames = names


def explain(item: pytest.Item, error: BaseException, report: pytest.TestReport) -> None:
    """A fixture that found no process group learns how it gets one."""
    if isinstance(error, ValueError) and _NO_GROUP in str(error):
        report.longrepr = (
            f"a fixture of {item.name} needs the process group, but was set up before the ranks were started: "
            f"let it ask for the fixture `{IN_RANK}`"
        )


def _needs_group(item: pytest.Function, name: str, seen: set[str]) -> bool:
    """Whether a fixture asks for `dist`, or for one that does."""
    if name == IN_RANK:
        return True
    if name in seen:
        return False
    seen.add(name)
    manager: Any = item.session._fixturemanager  # for names that a plugin has added to those of the test
    known: Any = item._fixtureinfo.name2fixturedefs.get(name) or manager.getfixturedefs(name, item) or ()
    return any(_needs_group(item, asked, seen) for one in known for asked in one.argnames)
