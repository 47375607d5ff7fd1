"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from distdoctor.cli import completion
from distdoctor.cli.loudness import loudness

FAIL_ON = ("error", "warning", "note", "never")
ON_HANG = ("report", "abort", "wait")

Command = TypeVar("Command", bound=Callable[..., Any])

no_plugin = click.option(
    "--no-plugin",
    "no_plugin",
    multiple=True,
    metavar="NAME",
    help="Do not load this plugin.",
)
ignore = click.option(
    "--ignore",
    multiple=True,
    metavar="CODE",
    shell_complete=completion.checks,
    help="Accept findings with this code or slug.",
)
fail_on = click.option(
    "--fail-on",
    type=click.Choice(FAIL_ON),
    metavar="SEVERITY",
    help="Exit with 1 from here: note, warning, error (the default); or never.",
)
output_format = click.option(
    "--output-format",
    metavar="FORMAT",
    shell_complete=completion.formats,
    help="text, json, markdown, html, sarif, junit, github, trace or patch.  [default: by FILE]",
)
output = click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write the report to this file.",
)
notify = click.option(
    "--notify",
    multiple=True,
    metavar="WAY",
    shell_complete=completion.ways,
    help="Send findings to wandb, mlflow, otel, ...",
)
baseline = click.option(
    "--baseline",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    metavar="FILE",
    help="Accept the findings of this JSON report.",
)


def reporting(command: Command) -> Command:
    """The options of every command that ends with a diagnosis."""
    command = loudness(command)
    for option in (no_plugin, output, output_format, baseline, fail_on, ignore):
        command = option(command)
    return command
