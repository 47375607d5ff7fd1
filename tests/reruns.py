"""Every rerun is printed with its reason, and written to the file that RERUNS_REPORT names, where CI counts them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

LONGEST_REASON = 900  # letters: the output of a command is a part of it, and what is wrong is seldom in its first line


class Reruns:
    """A pytest plugin for the process that all reports come to."""

    def __init__(self) -> None:
        self.reruns: list[dict[str, str]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.outcome == "rerun":
            self.reruns.append({"test": report.nodeid, "when": report.when or "", "reason": reason_of(report)})

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.reruns:
            terminalreporter.section(f"{len(self.reruns)} reruns")
        for rerun in self.reruns:
            terminalreporter.write_line(f"RERUN {rerun['test']} ({rerun['when']}): {rerun['reason']}")

    def pytest_sessionfinish(self) -> None:
        if path := os.environ.get("RERUNS_REPORT"):
            Path(path).write_text("".join(json.dumps(rerun) + "\n" for rerun in self.reruns), "utf-8")


def reason_of(report: pytest.TestReport) -> str:
    """What pytest's own summary would print for the failure, and what it says of the output that was compared."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash is not None else str(report.longrepr or "")
    return " | ".join(line.strip() for line in text.splitlines() if line.strip())[:LONGEST_REASON]
