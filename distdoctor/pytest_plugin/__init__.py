"""pytest plugin: a test function that runs in several ranks, and says why when they fail or hang.

    @pytest.mark.distdoctor(nproc=2, timeout=30)
    def test_everybody_sums():
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total.item() == dist.get_world_size()

Fixtures are set up once, here; then this process is forked into the ranks, which call the function with all that the fixtures
have made. A fixture that needs the process group asks for the fixture `dist`, and is set up in each rank. Assertions, skips,
expected failures, captured output, warnings and coverage of the ranks become those of the test. A hang, an exception in any rank
or an error that a check finds fails it, with the diagnosis in a section of its own.

Loaded by an entry point; it imports no torch, and costs nothing where the mark is not used.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest
from _pytest.unittest import TestCaseFunction

from distdoctor.errors import WrongUse
from distdoctor.pytest_plugin.fixtures import diagnose, dist, inject_fault, nproc
from distdoctor.pytest_plugin.in_rank import RANK, WARNED, list_of_warnings
from distdoctor.pytest_plugin.mark import FORM, counts_of, is_marked, mark_of
from distdoctor.pytest_plugin.ranks_repr import pack, unpack
from distdoctor.pytest_plugin.refusals import explain, refuse, without_group

__all__ = ["diagnose", "dist", "inject_fault", "nproc"]

pytest.register_assert_rewrite("distdoctor.pytest_plugin.contracts")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        f"{FORM}: run the test in this many ranks, and fail with a diagnosis when they hang, raise or are ill; a list of nproc "
        "makes one test of each",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`nproc=[1, 2, 4]` is three tests."""
    counts = counts_of(metafunc.definition)
    if counts:
        if "nproc" not in metafunc.fixturenames:
            metafunc.fixturenames.append("nproc")
        metafunc.parametrize("nproc", counts, indirect=True, ids=[f"nproc={count}" for count in counts])


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests in ranks come first: once this process has run a backward, torch lets no fork of it run one."""
    items.sort(key=lambda item: not is_marked(item))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Leave to the ranks the fixtures that need their group."""
    if not is_marked(item):
        return (yield)
    if isinstance(item, TestCaseFunction):
        item.runtest = lambda: _run_in_ranks(item)  # type: ignore[method-assign]
    item.stash[WARNED] = list_of_warnings()
    with without_group(item):
        return (yield)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Refuse what cannot run in ranks, unless the test is skipped anyway."""
    trouble = _trouble(item) if is_marked(item) else None
    if trouble is not None:
        pytest.fail(f"{trouble}. {trouble.way_out}", pytrace=False)


def _trouble(item: pytest.Item) -> WrongUse | None:
    try:
        refuse(item)
        mark_of(item)
    except WrongUse as trouble:
        return trouble
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a marked test in its ranks instead of here."""
    if not is_marked(pyfuncitem):
        return None
    _run_in_ranks(pyfuncitem)
    return True


def _run_in_ranks(item: pytest.Function) -> None:
    __tracebackhide__ = True
    from distdoctor.pytest_plugin.ranks import run

    run(item, mark_of(item))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """The report of a marked test is that of its ranks."""
    report = yield
    if call.when == "setup" and call.excinfo is not None and is_marked(item):
        explain(item, call.excinfo.value, report)
    elif call.when == "call" and is_marked(item):
        from distdoctor.pytest_plugin.reports import as_ranks_told

        as_ranks_told(item, report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable(config: pytest.Config, report: Any) -> Generator[None, Any, Any]:
    """What the ranks told reaches the controller of pytest-xdist whole."""
    data = yield
    pack(config, report, data)
    return data


@pytest.hookimpl(wrapper=True)
def pytest_report_from_serializable(config: pytest.Config, data: dict[str, Any]) -> Generator[None, Any, Any]:
    shown = unpack(config, data)
    report = yield
    if shown is not None:
        report.longrepr = shown
    return report


@pytest.hookimpl(wrapper=True, optionalhook=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> Generator[None, object, object]:
    """pytest-timeout's limit holds for the ranks as well; they are looked at before they are ended."""
    if is_marked(item):
        from distdoctor.pytest_plugin.ranks import TIMER

        item.stash[TIMER] = settings
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_exception_interact(node: pytest.Item | pytest.Collector) -> Generator[None, object, object]:
    """One rank after the other: there is one terminal."""
    _say(node.config, "stop_the_clock")
    try:
        return (yield)
    finally:
        _say(node.config, "go_on")


def pytest_enter_pdb(config: pytest.Config) -> None:
    _say(config, "stop_the_clock")


def pytest_leave_pdb(config: pytest.Config) -> None:
    _say(config, "go_on")


def _say(config: pytest.Config, what: str) -> None:
    """In a rank: while somebody sits at the debugger, no time limit counts."""
    rank = config.stash.get(RANK, None)
    if rank is not None:
        getattr(rank, what)()
