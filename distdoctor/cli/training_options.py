"""The options of the reference training: those that all strategies share, and the chosen strategy's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click
import rich_click

from distdoctor.cli import completion
from distdoctor.offers import Option, Strategy
from distdoctor.workloads.request import COMMON_OPTIONS

PREFIX = "training_"
PANEL = "Reference training (with --strategy); --no-NAME turns an option off"


class Switch(rich_click.RichOption):
    """The help shows one spelling, so that no line of it breaks within a word; --no-NAME works for every one."""

    def get_rich_table_row(self, *about: Any, **more: Any) -> Any:
        spellings, self.secondary_opts = self.secondary_opts, []
        try:
            return super().get_rich_table_row(*about, **more)
        finally:
            self.secondary_opts = spellings


def training_options() -> list[click.Option]:
    """What every strategy understands."""
    model = _shown("--model", "NAME", "mlp, convnet, ... or your own package.module:factory.")
    data = _shown("--data", "NAME[:PATH]", "digits, mnist:PATH, ... or your own package.module:factory.")
    return [model, data, *(_option(option, PANEL) for option in COMMON_OPTIONS)]


def strategy_options(strategy: Strategy) -> list[click.Option]:
    """What one strategy understands besides."""
    return [_option(option, f"Strategy {strategy.name}") for option in strategy.options]


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


def _option(option: Option, panel: str) -> click.Option:
    name = PREFIX + option.key
    if option.type is bool:
        spellings = [f"--{option.name}/--no-{option.name}", name]
        return Switch(spellings, default=None, help=_with_default(option), panel=panel)
    kind: Any = click.Choice(option.choices) if option.choices else option.type
    return rich_click.RichOption(
        [f"--{option.name}", name], type=kind, default=None, help=_with_default(option), panel=panel
    )


def _with_default(option: Option) -> str:
    if option.default is None or option.default is False or "(default: " in option.help:
        return option.help
    return f"{option.help}  [default: {'yes' if option.default is True else option.default}]"
