"""One pytest session over a suite in a temporary folder, and what became of each of its tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

KEEPS_REPORTS = """
import json, os, pathlib

def pytest_runtest_logreport(report):
    if report.when == "call" or (report.when == "setup" and not report.passed):
        outcome = "xfailed" if hasattr(report, "wasxfail") and report.skipped else report.outcome
        path = pathlib.Path(os.environ["REPORTS"])
        kept = {
            "name": report.nodeid.rpartition("::")[2],
            "outcome": outcome,
            "text": report.longreprtext,
            "sections": report.sections,
            "properties": report.user_properties,
            "seconds": report.duration,
        }
        with path.open("a") as file:
            file.write(json.dumps(kept) + "\\n")
"""


@dataclass(frozen=True)
class InnerTest:
    name: str
    outcome: str
    text: str
    sections: list[list[str]]
    properties: list[list[object]]
    seconds: float

    @property
    def everything(self) -> str:
        return "\n".join([self.text, *(f"{name}\n{text}" for name, text in self.sections)])


@dataclass(frozen=True)
class Session:
    tests: dict[str, InnerTest]
    output: str
    exit_code: int

    def outcomes(self) -> dict[str, str]:
        return {name: test.outcome for name, test in self.tests.items()}


def run_suite(folder: Path, files: Mapping[str, str], *arguments: str, typed: str | None = None) -> Session:
    """Write the files, run pytest on them, `typed` on its standard input."""
    for name, text in {"keeps_reports.py": KEEPS_REPORTS, **files}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    reports = folder / "reports.jsonl"
    command = [sys.executable, "-m", "pytest", "-p", "keeps_reports", "-p", "no:cacheprovider"]
    command += [] if "-n" in arguments else ["-p", "no:xdist"]
    command += [f"--basetemp={folder / 'base'}", "-p", "no:randomly", *arguments]
    paths = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    environment = {**_environment(), "REPORTS": str(reports), "PYTHONPATH": paths}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=200, cwd=folder, input=typed, env=environment, check=False
    )
    lines = reports.read_text().splitlines() if reports.exists() else []
    tests = {one["name"]: InnerTest(**one) for one in map(json.loads, lines)}
    return Session(tests, done.stdout + done.stderr, done.returncode)


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_", "DISTDOCTOR"))}
