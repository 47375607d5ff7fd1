"""README and docs say what is true."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
CODES = ROOT / "docs" / "codes.md"
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
BEGIN, END = "<!-- checks: begin (distdoctor rules --output-format markdown) -->\n", "<!-- checks: end -->"


def test_the_table_of_codes_is_the_one_that_rules_prints(say: Callable[..., Any]) -> None:
    """After a change: REWRITE_GOLDEN=1 pytest tests/test_readme.py."""
    before, _, rest = CODES.read_text("utf-8").partition(BEGIN)
    table, _, after = rest.partition(END)
    printed = say("rules", "--output-format", "markdown").out

    if os.environ.get("REWRITE_GOLDEN"):
        CODES.write_text(before + BEGIN + printed + END + after, "utf-8")
    else:
        assert table.strip() == printed.strip()


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 150


@pytest.mark.parametrize("mark", ["ci: install and run", "ci: install and test"])
def test_ci_finds_its_commands_in_the_readme(mark: str) -> None:
    assert re.search(rf"^<!-- {mark} -->\n```bash\n.+\n```$", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_to_files_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", page.read_text("utf-8"))

    assert [link for link in links if not (page.parent / link).exists()] == []


def test_every_check_is_in_the_catalogue() -> None:
    catalogue = (ROOT / "docs" / "catalogue.md").read_text("utf-8")
    rows = re.findall(r"^\| (DD\d{3}) \| ([\w-]+)", catalogue, re.MULTILINE)
    taken = dict(rows)
    checks = re.findall(r"^\| (DD\d{3}) \| ([\w-]+)", CODES.read_text("utf-8"), re.MULTILINE)

    assert {code: slug for code, slug in checks if taken.get(code) != slug} == {}
    assert len(rows) == len(taken), "a code stands there twice"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_page_shows_both_sides_of_a_merge(page: Path) -> None:
    assert not re.search(r"^(<{7}|>{7}) ", page.read_text("utf-8"), re.MULTILINE)
