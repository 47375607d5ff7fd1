"""`distdoctor completion SHELL`, and the values that options complete to: codes, strategies, drills, models, formats."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import click
import rich_click
from click.shell_completion import CompletionItem, get_completion_class

from distdoctor.cli.deliver import REPORTERS
from distdoctor.notify.ways import WAYS

if TYPE_CHECKING:
    from distdoctor.plugins import Plugins

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_DISTDOCTOR_COMPLETE"

Values = Iterable[tuple[str, str]]
"""What can be completed to, each with a few words about it."""
Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


@click.command(cls=rich_click.RichCommand)
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print what makes a shell complete commands, options, codes, strategies, drills and models.

    \b
    eval "$(distdoctor completion bash)"                       in ~/.bashrc; zsh likewise
    distdoctor completion fish > ~/.config/fish/completions/distdoctor.fish
    """
    from distdoctor.cli.main import cli

    kind = get_completion_class(shell)
    assert kind is not None, shell
    click.echo(kind(cli, {}, "distdoctor", VARIABLE).source())


def _completing(values: Callable[[Plugins], Values]) -> Complete:
    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from distdoctor import plugins

        found = values(plugins.load())
        return [CompletionItem(name, help=words) for name, words in found if name.startswith(incomplete)]

    return complete


def _checks(plugins: Plugins) -> Values:
    for check in plugins.checks.values():
        yield check.code, check.slug
        yield check.slug, check.code


def _drills(plugins: Plugins) -> Values:
    return (("list", "show them"), *((drill.slug, drill.summary) for drill in plugins.drills.values()))


checks = _completing(_checks)
stop_on = _completing(lambda plugins: (("nan", "whatever is not finite"), *_checks(plugins)))
strategies = _completing(lambda plugins: ((one.name, "") for one in plugins.strategies.values()))
drills = _completing(_drills)
models = _completing(lambda plugins: ((name, "") for name in plugins.models))
data = _completing(lambda plugins: ((name, "") for name in plugins.data))
ways = _completing(lambda plugins: ((way.name, f"[:{way.where}]") for way in WAYS.values()))
formats = _completing(lambda plugins: ((name, "") for name in ("text", *REPORTERS, *plugins.reports)))
