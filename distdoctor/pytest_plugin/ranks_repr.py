"""What pytest prints of a test that failed in its ranks, and how that travels from a worker of pytest-xdist to the controller."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import pytest
from _pytest._code.code import ReprFileLocation, TerminalRepr
from _pytest._io import TerminalWriter

from distdoctor.recording.rank_set import named

_PACKED = "$distdoctor_ranks"


@dataclass
class RankReport:
    """What the function raised in one rank, as pytest reports it; `ranks` are all that raised the same at the same line."""

    ranks: list[int]
    report: pytest.TestReport
    at_ns: int

    @property
    def reason(self) -> str:
        """One line: why it was skipped, or what it raised."""
        longrepr = self.report.longrepr
        if isinstance(longrepr, tuple):
            return str(longrepr[2])
        crash = getattr(longrepr, "reprcrash", None)
        return str(crash.message if crash is not None else longrepr).strip().partition("\n")[0]


class RanksRepr(TerminalRepr):
    """The headline, then the traceback of each rank under its own line. `location`: path and line where no rank has raised."""

    def __init__(self, headline: str, reports: list[RankReport], location: tuple[str, int]) -> None:
        self.headline, self.reports, self.location = headline, reports, location
        words = headline.partition("\n")[0] or f"{named(reports[0].ranks)}: {reports[0].reason}"
        crash = getattr(reports[0].report.longrepr, "reprcrash", None) if reports else None
        path, line = (crash.path, crash.lineno) if crash is not None else location
        self.reprcrash = ReprFileLocation(path, line, words)

    def toterminal(self, tw: TerminalWriter) -> None:
        for line in self.headline.splitlines():
            tw.line(line, red=True, bold=True)
        for number, one in enumerate(self.reports):
            first = " (the first to fail)" if number == 0 and len(self.reports) > 1 else ""
            tw.sep("_ ", f"{named(one.ranks)}{first}")
            _show(one, tw)


def _show(one: RankReport, tw: TerminalWriter) -> None:
    longrepr = one.report.longrepr
    if one.report.skipped:
        tw.line(f"skipped: {one.reason.removeprefix('Skipped: ')}")
    elif isinstance(longrepr, TerminalRepr):
        longrepr.toterminal(tw)
    else:
        tw.line(str(longrepr))


def location_of(item: pytest.Item) -> tuple[str, int]:
    path, line, _ = item.location
    return path, (line or 0) + 1


def read_report(config: pytest.Config, data: dict[str, Any]) -> pytest.TestReport:
    """A report that pytest has serialised."""
    report: pytest.TestReport = config.hook.pytest_report_from_serializable(
        config=config,
        data=deepcopy(data),  # which it takes apart
    )
    if isinstance(report.longrepr, list):  # JSON has no tuples: where it was skipped, and why
        report.longrepr = tuple(report.longrepr)
    return report


def pack(config: pytest.Config, report: pytest.TestReport, data: dict[str, Any]) -> None:
    """Beside the text that pytest makes of a foreign `longrepr`, lay what it was made of."""
    shown = report.longrepr
    if isinstance(shown, RanksRepr):
        hook = config.hook.pytest_report_to_serializable
        reports = [[one.ranks, hook(config=config, report=one.report), one.at_ns] for one in shown.reports]
        data[_PACKED] = {"headline": shown.headline, "reports": reports, "location": [*shown.location]}


def unpack(config: pytest.Config, data: dict[str, Any]) -> RanksRepr | None:
    """What `pack` has laid there, None where it has not."""
    packed = data.pop(_PACKED, None)
    if packed is None:
        return None
    reports = [RankReport(ranks, read_report(config, one), at_ns) for ranks, one, at_ns in packed["reports"]]
    path, line = packed["location"]
    return RanksRepr(packed["headline"], reports, (path, line))
