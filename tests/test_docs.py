"""Every command and option that the pages of the site show exists, and the site builds without a warning."""

from __future__ import annotations

import importlib
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from distdoctor.cli.main import COMMANDS
from distdoctor.report import links

DOCS = Path(__file__).parent.parent / "docs"
NAMES = (
    "tutorial.md",
    "python.md",
    "pytest.md",
    "howto/hangs.md",
    "howto/diverging.md",
    "howto/data.md",
    "howto/memory.md",
)
PAGES = (*NAMES, "howto/ci.md", "howto/clusters.md", "howto/notify.md")


def _command(name: str) -> click.Command:
    module, _, attribute = COMMANDS[name].partition(":")
    found = getattr(importlib.import_module(module), attribute)
    assert isinstance(found, click.Command)
    return found


def _shown(page: str) -> list[list[str]]:
    blocks = re.findall(r"```bash\n(.*?)```", (DOCS / page).read_text("utf-8"), re.S)
    lines = [
        line.partition("distdoctor ")[2] for block in blocks for line in block.splitlines() if "distdoctor " in line
    ]
    return [shlex.split(line, comments=True) for line in lines]


@pytest.mark.parametrize("page", PAGES)
def test_every_command_that_is_shown_is_understood(page: str) -> None:
    for words in _shown(page):
        assert words[0] in COMMANDS, words
        try:
            _command(words[0]).make_context(words[0], words[1:])
        except click.UsageError as refused:
            if "does not exist" not in refused.format_message():
                raise


@pytest.mark.job
@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("material", reason="mkdocs-material is not installed")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(tmp_path / "site")]

    done = subprocess.run(command, cwd=DOCS.parent, capture_output=True, text=True, timeout=120, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    page = (tmp_path / "site" / "index.html").read_text("utf-8")
    assert "fonts.googleapis.com" not in page
    assert 'href="../reference/codes/DD301/"' in (tmp_path / "site" / "codes" / "index.html").read_text("utf-8")
    monkeypatch.setattr(links, "_addresses", lambda: {"documentation": (tmp_path / "site").as_uri()})
    code = Path(links.page_of("DD301").removeprefix("file://"), "index.html").read_text("utf-8")
    assert "What to do" in code
    assert "distdoctor explain DD301" in code  # the report
