"""How much a command says beside its report, and whether in colour: `-q`, `-v`, `--color`."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TextIO, TypeVar

import click

COLOURS = ("auto", "always", "never")
Command = TypeVar("Command", bound=Callable[..., Any])

_asked = {"quiet": False, "verbose": False, "color": "auto"}  # of the one command of this process


def quiet() -> bool:
    """Only findings, and what kept distdoctor from looking."""
    return bool(_asked["quiet"])


def verbose() -> bool:
    """Also the reason of each check that could not look."""
    return bool(_asked["verbose"])


def coloured(stream: TextIO) -> bool:
    """Whether text on this stream is coloured: as asked for, else on a terminal unless NO_COLOR is set."""
    if _asked["color"] != "auto":
        return _asked["color"] == "always"
    return stream.isatty() and not os.environ.get("NO_COLOR")


def _note(ctx: click.Context, option: click.Parameter, value: Any) -> None:
    _asked[option.name or ""] = value


def loudness(command: Command) -> Command:
    """The three options. Called for each command line, given or not, so that nothing of an earlier one stays."""
    for option in (
        click.option(
            "--color",
            type=click.Choice(COLOURS),
            default="auto",
            expose_value=False,
            callback=_note,
            help="Color the report.  [default: auto]",
        ),
        click.option(
            "-v",
            "--verbose",
            is_flag=True,
            expose_value=False,
            callback=_note,
            help="Print why checks could not run.",
        ),
        click.option(
            "-q",
            "--quiet",
            is_flag=True,
            expose_value=False,
            callback=_note,
            help="Print only findings and problems.",
        ),
    ):
        command = option(command)
    return command
