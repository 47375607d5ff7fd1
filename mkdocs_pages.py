"""Pages of the site that say what the code says: commands, the page of every code with its report, the JSON schema, the hooks.

A hook of mkdocs (`hooks` in mkdocs.yml); nothing is written into docs/.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.testing import CliRunner

from distdoctor import hooks, plugins
from distdoctor.cli.main import COMMANDS, cli
from distdoctor.diagnosis.check import Check
from distdoctor.report import json_report

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

GOLDEN = Path(__file__).parent / "tests" / "reports" / "golden"
CODES = "reference/codes"
PLAIN = {"NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "100"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    from mkdocs.structure.files import File

    for path, text in pages():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The table of codes leads to their pages."""
    if page.file.src_uri != "codes.md":
        return markdown
    return re.sub(r"^\| (DD\d+) \|", rf"| [\1]({CODES}/\1.md) |", markdown, flags=re.M)


def pages() -> Iterator[tuple[str, str]]:
    """(path below docs, text) of every page that is made."""
    yield "reference/commands.md", commands()
    yield (
        "reference/schema.md",
        f"# The JSON report\n\n`distdoctor schema` prints this.\n\n```json\n{json_report.schema()}\n```\n",
    )
    yield "reference/hooks.md", documented_hooks()
    for check in plugins.load().checks.values():
        if check.code.startswith("DD"):
            yield f"{CODES}/{check.code}.md", page_of(check)


def page_of(check: Check) -> str:
    """What `distdoctor explain` prints, and the report on the smallest recording with this illness."""
    title, _, text = check.handbook.partition("\n")
    report = GOLDEN / f"{check.code}-{check.slug}.txt"
    shown = f"## What it says\n\n```text\n{report.read_text('utf-8')}```\n" if report.exists() else ""
    return f"# {title}\n\n```text\n{text.strip()}\n```\n\n{shown}"


def commands() -> str:
    parts = ["# Commands\n"]
    for name in sorted(COMMANDS):
        shown = CliRunner().invoke(cli, [name, "--help"], prog_name="distdoctor", env=PLAIN, catch_exceptions=False)
        parts.append(f"## {name}\n\n```text\n{click.unstyle(shown.output).strip()}\n```\n")
    return "\n".join(parts)


def documented_hooks() -> str:
    parts = [
        "# Hooks\n",
        f"What a [plugin](../plugins.md) may implement.\n\n```text\n{inspect.cleandoc(hooks.__doc__ or '')}\n```\n",
    ]
    for name, hook in vars(hooks).items():
        if name.startswith(hooks.PREFIX) and inspect.isfunction(hook):
            parts.append(
                f"## {name}\n\n```python\ndef {name}{inspect.signature(hook)}\n```\n\n{inspect.getdoc(hook)}\n"
            )
    return "\n".join(parts)
