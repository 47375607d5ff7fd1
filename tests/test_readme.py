"""The README says what is true."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_table_of_checks_is_the_one_that_rules_prints() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    begin, end = "<!-- checks: begin (distdoctor rules --output-format markdown) -->\n", "<!-- checks: end -->"
    table = readme.partition(begin)[2].partition(end)[0]

    command = [sys.executable, "-m", "distdoctor", "rules", "--output-format", "markdown"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout

    assert table.strip() == printed.strip()
