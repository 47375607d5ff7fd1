"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

FAIL_ON = ("error", "warning", "note", "never")
ON_HANG = ("report", "abort", "wait")

Command = TypeVar("Command", bound=Callable[..., Any])

no_plugin = click.option(
    "--no-plugin",
    "no_plugin",
    multiple=True,
    metavar="NAME",
    help="Leave this plugin out (`distdoctor plugins` lists them).",
)
ignore = click.option(
    "--ignore", multiple=True, metavar="CODE", help="Accept findings with this code; they are listed as suppressed."
)
fail_on = click.option(
    "--fail-on", type=click.Choice(FAIL_ON), help="Exit with 1 at findings this severe or worse.  [default: error]"
)
output_format = click.option(
    "--output-format",
    metavar="FORMAT",
    help="text, json, sarif, junit, github, html, trace, or a plugin's.  [default: by the suffix of FILE, else text]",
)
output = click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write the report to this file.",
)


def reporting(command: Command) -> Command:
    """The options of every command that ends with a diagnosis."""
    for option in (no_plugin, output, output_format, fail_on, ignore):
        command = option(command)
    return command
