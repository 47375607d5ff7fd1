"""The options of the reference training that all strategies share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click
import rich_click

from distdoctor.cli import completion
from distdoctor.cli.strategy_options import PREFIX, option_of
from distdoctor.workloads.request import COMMON_OPTIONS

PANEL = "Reference training (with --strategy); --no-NAME turns an option off"


def training_options() -> list[click.Option]:
    """What every strategy understands."""
    model = _shown(
        "--model",
        "NAME",
        "mlp, convnet, ... or your own package.module:f; f(shapes) or f() returns a torch.nn.Module.",
    )
    data = _shown(
        "--data",
        "NAME[:PATH]",
        "digits, mnist:PATH, ... or your own package.module:f; f() returns (training set, test set).",
    )
    return [model, data, *(option_of(option, PANEL) for option in COMMON_OPTIONS)]


def training_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """What was given on the command line, by the option's key."""
    return {
        name.removeprefix(PREFIX): value
        for name, value in values.items()
        if name.startswith(PREFIX) and value is not None
    }


def _shown(spelling: str, metavar: str, words: str) -> click.Option:
    complete = completion.models if spelling == "--model" else completion.data
    names = [spelling, PREFIX + spelling[2:]]
    return rich_click.RichOption(names, metavar=metavar, help=words, panel=PANEL, shell_complete=complete)
