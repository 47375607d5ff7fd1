"""Subtests of the ranks: each becomes one subtest of the test, failed where it has failed in any rank."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from distdoctor.pytest_plugin.in_rank import RankOutcome
from distdoctor.pytest_plugin.ranks_repr import RanksRepr, location_of, read_report
from distdoctor.pytest_plugin.reports import grouped
from distdoctor.recording.rank_set import named

_Key = tuple[str, int]


def log_again(item: pytest.Function, outcomes: dict[int, RankOutcome]) -> None:
    """Report the subtests of all ranks as those of this test."""
    by_subtest: dict[_Key, dict[int, dict[str, Any]]] = {}
    for rank, outcome in outcomes.items():
        times: Counter[str] = Counter()
        for data in outcome.subtests:
            name = json.dumps(data.get("_subtest.context"), sort_keys=True, default=str)
            by_subtest.setdefault((name, times[name]), {})[rank] = data
            times[name] += 1
    count_failed = _counter(item)
    for by_rank in by_subtest.values():
        report = _of_all_ranks(item, by_rank)
        if report.failed:
            count_failed()
        with _on_the_terminal(item.config):
            item.ihook.pytest_runtest_logreport(report=report)


def _on_the_terminal(config: pytest.Config) -> contextlib.AbstractContextManager[None]:
    capture: Any = config.pluginmanager.get_plugin("capturemanager")
    return contextlib.nullcontext() if capture is None else capture.global_and_fixture_disabled()


def _of_all_ranks(item: pytest.Function, by_rank: dict[int, dict[str, Any]]) -> pytest.TestReport:
    failed = [(rank, 0, data) for rank, data in by_rank.items() if data["outcome"] == "failed"]
    report = read_report(item.config, failed[0][2] if failed else next(iter(by_rank.values())))
    if failed:
        report.longrepr = RanksRepr("", grouped(item, failed), location_of(item))
    report.sections = [
        (f"{title} ({named([rank])})", text) for rank, data in by_rank.items() for title, text in data["sections"]
    ]
    return report


def _counter(item: pytest.Function) -> Callable[[], None]:
    """How pytest learns that a test has a failed subtest; before pytest 9 the report of the subtest says it alone."""
    try:
        from _pytest.subtests import failed_subtests_key
    except ImportError:
        return lambda: None
    failed: Any = item.config.stash[failed_subtests_key]
    key: Any = getattr(item, "id", item.nodeid)

    def count() -> None:
        failed[key] += 1

    return count
