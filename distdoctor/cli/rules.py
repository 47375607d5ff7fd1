"""`distdoctor rules`: the table of checks."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click
import rich_click

from distdoctor.cli.options import no_plugin

if TYPE_CHECKING:
    from distdoctor.diagnosis.check import Check


@click.command(cls=rich_click.RichCommand)
@click.option(
    "--output-format", type=click.Choice(["text", "json", "markdown"]), default="text", help="How to print it."
)
@no_plugin
def rules(output_format: str, no_plugin: tuple[str, ...]) -> None:
    """List the checks: code, severity, whether they also run while the job is running, and what they find."""
    from distdoctor.cli.settings import load, load_plugins

    checks = list(load_plugins(load({"no_plugin": no_plugin})).checks.values())
    click.echo({"text": _text, "json": _json, "markdown": markdown}[output_format](checks))


def markdown(checks: list[Check]) -> str:
    """The table of docs/codes.md."""
    rows = ["| code | check | severity | live | what it finds |", "|---|---|---|---|---|"]
    rows += [
        f"| {c.code} | {c.slug} | {c.severity.word} | {'yes' if c.live else 'no'} | {_cell(c.headline)} |"
        for c in checks
    ]
    return "\n".join(rows)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _text(checks: list[Check]) -> str:
    width = max((len(check.slug) for check in checks), default=0)
    return "\n".join(
        f"{c.code}  {c.slug:<{width}}  {c.severity.word:<7}  {'live' if c.live else '    '}  {c.headline}"
        for c in checks
    )


def _json(checks: list[Check]) -> str:
    fields = [
        {
            "code": c.code,
            "slug": c.slug,
            "severity": c.severity.word,
            "live": c.live,
            "streams": sorted(c.streams),
            "headline": c.headline,
        }
        for c in checks
    ]
    return json.dumps(fields, indent=2)
