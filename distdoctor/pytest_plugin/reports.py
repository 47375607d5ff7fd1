"""What became of a test in its ranks, as one pytest report: every rank's error, the first one first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from distdoctor.diagnosis.diagnosis import Diagnosis
from distdoctor.diagnosis.finding import ERROR, Finding
from distdoctor.pytest_plugin.in_rank import RankOutcome, output_file
from distdoctor.pytest_plugin.mark import RankMark
from distdoctor.pytest_plugin.ranks_repr import RankReport, RanksRepr, location_of, read_report
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import RankEnd
from distdoctor.recording.stacks import Stacks
from distdoctor.report.root_cause import signal_name


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

    def judge(self, folder: Path) -> None:
        """Lay the diagnosis beside the other sections where it says more than the tracebacks; `folder` has what it names."""
        if self.passed or self.is_skip or self.diagnosis is None:
            return
        base = str(self.item.config.rootpath)
        if not all(map(self._is_said, self.diagnosis.findings)):
            from distdoctor.report.text import render

            text = f"{render(self.diagnosis, base=base).rstrip()}\n  recording  {folder}\n"
            self.item.add_report_section("call", "diagnosis", text)
        if self.stacks is not None:
            from distdoctor.report.stack_tree import render as tree

            self.item.add_report_section("call", "stacks", "\n".join(tree(self.stacks, base)) + "\n")

    @property
    def headline(self) -> str:
        """Why the test fails, in a few lines."""
        lines = [f"{finding.code} {finding.ranks_named}: {finding.title}" for finding in self._leading()]
        if self._is_skipped_by_some:
            skipped = sorted(rank for one in self.reports for rank in one.ranks)
            others = sorted({*range(self.mark.nproc)} - {*skipped})
            lines.append(f"{named(skipped)} skipped the test, {named(others)} did not")
        if self.late:
            lines.append(f"{named(self.unfinished or range(self.mark.nproc))} did not end {self._when()}")
        told = {rank for finding in self._leading() for rank in finding.ranks}
        unsaid = [rank for rank in self.silent if rank not in told]
        lines += [f"rank {rank} {_ended(self.ends.get(rank))} before its test was over" for rank in unsaid]
        return "\n".join(lines)

    @property
    def _is_skipped_by_some(self) -> bool:
        """Nothing else is wrong than that other ranks have not skipped it."""
        some = not (self.is_skip or self.late or self.silent or self.errors)
        return some and bool(self.reports) and all(one.report.skipped and not _is_xfail(one) for one in self.reports)

    def _when(self) -> str:
        return "and never would have" if self.for_good else f"within {self.mark.timeout:g} s"

    def _leading(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.errors if not self._is_said(finding))[:1]

    def _is_said(self, finding: Finding) -> bool:
        """Whether it says no more than the tracebacks of its ranks, which stand above it: no special check explains it."""
        told = {rank for one in self.reports for rank in one.ranks}
        return bool(finding.evidence.get("traceback")) and not finding.specificity and told.issuperset(finding.ranks)


RESULT = pytest.StashKey[TestResult]()


def grouped(item: pytest.Item, raised: Iterable[tuple[int, int, dict[str, Any]]]) -> list[RankReport]:
    """One report for all ranks that raised the same. `raised`: rank, when, and pytest's report as it serialises it."""
    found: dict[tuple[object, ...], RankReport] = {}
    for rank, at_ns, data in raised:
        one = RankReport([rank], read_report(item.config, data), at_ns)
        crash = getattr(one.report.longrepr, "reprcrash", None)
        key = (one.report.outcome, one.reason, getattr(crash, "path", ""), getattr(crash, "lineno", 0))
        if key in found:
            found[key].ranks.append(rank)
        else:
            found[key] = one
    return [*found.values()]


def _is_xfail(one: RankReport) -> bool:
    return hasattr(one.report, "wasxfail")


def _ended(end: RankEnd | None) -> str:
    if end is None:
        return "ended"
    return f"was ended by {signal_name(end.signal)}" if end.signal else f"ended with exit code {end.exit_code}"


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
        report.longrepr = RanksRepr(result.headline, result.reports, location_of(item))
        if hasattr(report, "wasxfail"):
            del report.wasxfail
