"""An option of a reference training as the command line has it, and those of one strategy; nothing here completes values."""

from __future__ import annotations

from typing import Any

import click
import rich_click

from distdoctor.offers import Option, Strategy

PREFIX = "training_"


class Switch(rich_click.RichOption):
    """The help shows one spelling, so that no line of it breaks within a word; --no-NAME works for every one."""

    def get_rich_table_row(self, *about: Any, **more: Any) -> Any:
        spellings, self.secondary_opts = self.secondary_opts, []
        try:
            return super().get_rich_table_row(*about, **more)
        finally:
            self.secondary_opts = spellings


def strategy_options(strategy: Strategy) -> list[click.Option]:
    """What one strategy understands besides."""
    return [option_of(option, f"Strategy {strategy.name}") for option in strategy.options]


def option_of(option: Option, panel: str) -> click.Option:
    """One option, under this heading of the help."""
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
