"""`distdoctor schema`: the JSON schema of the report for programs."""

from __future__ import annotations

import click
import rich_click


@click.command(cls=rich_click.RichCommand)
def schema() -> None:
    """Print the JSON schema of `--output-format json`."""
    from distdoctor.report import json_report

    click.echo(json_report.schema(), nl=False)
