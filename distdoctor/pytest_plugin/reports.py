"""What became of a test in its ranks, as one pytest report: every rank's error, the first one first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from _pytest._code.code import ReprFileLocation, TerminalRepr
from _pytest._io import TerminalWriter

from distdoctor.diagnosis.diagnosis import Diagnosis
from distdoctor.diagnosis.finding import ERROR, Finding
from distdoctor.pytest_plugin.in_rank import RankOutcome, output_file
from distdoctor.pytest_plugin.mark import RankMark
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import RankEnd
from distdoctor.recording.stacks import Stacks
from distdoctor.report.root_cause import signal_name


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


@dataclass
class TestResult:
    """One test in its ranks. `late`: ranks had to be ended because time was over, or because they would never have gone on."""

    __test__ = False

    item: pytest.Function
    mark: RankMark
    outcomes: dict[int, RankOutcome]
    ends: dict[int, RankEnd]
    late: bool
    diagnosis: Diagnosis | None = None
    stacks: Stacks | None = None
    for_good: bool = False  # a standstill was proven before time was over
    reports: list[RankReport] = field(default_factory=list)
    output: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        raised = sorted(self.outcomes.values(), key=lambda one: one.at_ns)
        self.reports = grouped(self.item, [(one.rank, one.at_ns, one.report) for one in raised if one.report])

    @property
    def leave(self) -> str | None:
        """pytest.exit() was called in a rank, or somebody left its debugger."""
        if any(outcome.interrupted for outcome in self.outcomes.values()):
            return "interrupted in a rank"
        return next((outcome.leave for outcome in self.outcomes.values() if outcome.leave is not None), None)

    @property
    def is_skip(self) -> bool:
        """Every rank has skipped the test."""
        skipped = [rank for one in self.reports if one.report.skipped and not _is_xfail(one) for rank in one.ranks]
        return not self.late and len(skipped) == self.mark.nproc

    @property
    def passed(self) -> bool:
        return not (self.late or self.reports or self.errors or self.silent)

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings that fail the test."""
        return self.diagnosis.at_least(ERROR) if self.diagnosis is not None and not self.mark.allows_all else ()

    @property
    def silent(self) -> list[int]:
        """Ranks that have ended without a word: killed, or by os._exit."""
        return [r for r in range(self.mark.nproc) if r not in self.outcomes and not self._was_ended(r)]

    @property
    def unfinished(self) -> list[int]:
        """Ranks that had to be ended."""
        return [rank for rank in range(self.mark.nproc) if self._was_ended(rank)]

    def _was_ended(self, rank: int) -> bool:
        end = self.ends.get(rank)
        return end is None or end.ended_by_launcher

    def properties(self) -> Iterator[tuple[str, Any]]:
        for outcome in self.outcomes.values():
            yield from ((name, value) for name, value in outcome.properties)

    def keep_output(self, folder: Path) -> None:
        """What each rank has printed and logged becomes a section of the report."""
        for rank in range(self.mark.nproc):
            for stream in ("stdout", "stderr"):
                path = output_file(folder, rank, stream)
                text = path.read_text("utf-8", errors="replace") if path.exists() else ""
                self.output += [(f"{stream} (rank {rank})", text)] if text else []
            outcome = self.outcomes.get(rank)
            self.output += [(f"log (rank {rank})", outcome.log)] if outcome is not None and outcome.log else []
        for name, text in self.output:
            self.item.add_report_section("call", name, text)

    def judge(self) -> None:
        """Lay the diagnosis beside the test's other sections where it says more than the tracebacks."""
        if self.passed or self.is_skip or self.diagnosis is None:
            return
        base = str(self.item.config.rootpath)
        if self.diagnosis.findings:
            from distdoctor.report.text import render

            self.item.add_report_section("call", "diagnosis", render(self.diagnosis, base=base))
        if self.stacks is not None:
            from distdoctor.report.stack_tree import render as tree

            self.item.add_report_section("call", "stacks", "\n".join(tree(self.stacks, base)) + "\n")

    @property
    def headline(self) -> str:
        """Why the test fails, in a few lines."""
        lines = [f"{finding.code} {finding.ranks_named}: {finding.title}" for finding in self._leading()]
        if self.late and self.unfinished:
            lines.append(f"{named(self.unfinished)} did not end {self._when()}")
        lines += [f"rank {rank} {_ended(self.ends.get(rank))} without a word" for rank in self.silent]
        return "\n".join(lines)

    def _when(self) -> str:
        return "and never would have" if self.for_good else f"within {self.mark.timeout:g} s"

    def _leading(self) -> tuple[Finding, ...]:
        told = {rank for one in self.reports for rank in one.ranks}
        said = tuple(f for f in self.errors if not (_retells_a_traceback(f) and told.issuperset(f.ranks)))
        return said[:1]


def _retells_a_traceback(finding: Finding) -> bool:
    """Whether it says no more than the traceback of a rank, which stands above it: no special check explains it."""
    return bool(finding.evidence.get("traceback")) and not finding.specificity


RESULT = pytest.StashKey[TestResult]()


def grouped(item: pytest.Item, raised: Iterable[tuple[int, int, dict[str, Any]]]) -> list[RankReport]:
    """One report for all ranks that raised the same. `raised`: rank, when, and pytest's report as it serialises it."""
    found: dict[tuple[object, ...], RankReport] = {}
    for rank, at_ns, data in raised:
        one = RankReport([rank], read_report(item, data), at_ns)
        crash = getattr(one.report.longrepr, "reprcrash", None)
        key = (one.report.outcome, one.reason, getattr(crash, "path", ""), getattr(crash, "lineno", 0))
        if key in found:
            found[key].ranks.append(rank)
        else:
            found[key] = one
    return [*found.values()]


def read_report(item: pytest.Item, data: dict[str, Any]) -> pytest.TestReport:
    report: pytest.TestReport = item.config.hook.pytest_report_from_serializable(
        config=item.config,
        data=deepcopy(data),  # which it takes apart
    )
    if isinstance(report.longrepr, list):  # JSON has no tuples: where it was skipped, and why
        report.longrepr = tuple(report.longrepr)
    return report


def _is_xfail(one: RankReport) -> bool:
    return hasattr(one.report, "wasxfail")


def _ended(end: RankEnd | None) -> str:
    if end is None:
        return "ended"
    return f"was ended by {signal_name(end.signal)}" if end.signal else f"ended with exit code {end.exit_code}"


class RanksRepr(TerminalRepr):
    """What pytest prints: the headline, then the traceback of each rank under its own line."""

    def __init__(self, headline: str, reports: list[RankReport], item: pytest.Item) -> None:
        self.headline, self.reports = headline, reports
        path, line, _ = item.location
        words = headline.partition("\n")[0] or f"{named(reports[0].ranks)}: {reports[0].reason}"
        crash = getattr(reports[0].report.longrepr, "reprcrash", None) if reports else None
        self.reprcrash = ReprFileLocation(
            crash.path if crash is not None else path, crash.lineno if crash is not None else (line or 0) + 1, words
        )

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
        tw.line(f"skipped: {one.reason}")
    elif isinstance(longrepr, TerminalRepr):
        longrepr.toterminal(tw)
    else:
        tw.line(str(longrepr))


def as_ranks_told(item: pytest.Item, report: pytest.TestReport) -> None:
    """Give a test's report the outcome of its ranks. What pytest has made of `RanksFailed` stays where no rank has raised."""
    result = item.stash.get(RESULT, None)
    if result is None or result.passed:
        return
    first = result.reports[0] if result.reports else None
    if first is not None and (result.is_skip or _is_xfail(first)) and not result.late:
        report.outcome, report.longrepr = first.report.outcome, first.report.longrepr
        if _is_xfail(first):
            report.wasxfail = first.report.wasxfail
        return
    if first is not None or not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = RanksRepr(result.headline, result.reports, item)
        if hasattr(report, "wasxfail"):
            del report.wasxfail
