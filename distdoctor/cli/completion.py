"""`distdoctor completion SHELL`, and the values that options complete to: codes, strategies, drills, models, formats."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any

import click
import rich_click
from click.shell_completion import CompletionItem, get_completion_class

from distdoctor.cli.deliver import REPORTERS
from distdoctor.cli.remembered import files_of, remembered
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


def _completing(kind: str, values: Callable[[Plugins], Values]) -> Complete:
    """`kind`: the name under which the values are remembered."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        found = _offered(kind, lambda plugins: list(values(plugins)))
        return [CompletionItem(name, help=words) for name, words in found if name.startswith(incomplete)]

    return complete


def _offered(kind: str, read_off: Callable[[Plugins], Any]) -> Any:
    """What is read off the installed plugins, remembered."""
    loaded: list[str] = []

    def make() -> Any:
        from distdoctor import plugins

        found = plugins.load()
        loaded.extend(plugin.module.partition(":")[0] for plugin in found.loaded)
        return read_off(found)

    return remembered(kind, make, lambda: files_of(["distdoctor", *loaded]))


def torchrun_options(taken: Collection[str]) -> list[click.Option]:
    """Torchrun's options as far as completing needs them, without torch where they are remembered."""

    def make() -> list[Any]:
        from distdoctor.cli.torchrun_options import torchrun_options

        return [_kept(option) for option in torchrun_options()]

    known = remembered("torchrun", make, lambda: files_of(["torch.distributed.run"]))
    return [_option(one) for one in known if not set(taken) & set(one["spellings"])]


def strategy_options() -> dict[str, list[click.Option]]:
    """The own options of each strategy, as far as completing needs them."""

    def read_off(plugins: Plugins) -> dict[str, list[Any]]:
        from distdoctor.cli.strategy_options import strategy_options

        return {one.name: [_kept(option) for option in strategy_options(one)] for one in plugins.strategies.values()}

    found = _offered("strategy options", read_off)
    return {name: [_option(one) for one in options] for name, options in found.items()}


def _kept(option: click.Option) -> dict[str, Any]:
    switch = [f"{on}/{off}" for on, off in zip(option.opts, option.secondary_opts, strict=False)]
    choices = option.type.choices if isinstance(option.type, click.Choice) else []
    return {
        "spellings": [*(switch or option.opts), option.name],
        "is_flag": option.is_flag,
        "help": option.help,
        "choices": list(choices),
    }


def _option(kept: dict[str, Any]) -> click.Option:
    option = click.Option(kept["spellings"], is_flag=kept["is_flag"], help=kept["help"])
    if kept["choices"]:
        option.type = click.Choice(kept["choices"])
    return option


def _checks(plugins: Plugins) -> Values:
    for check in plugins.checks.values():
        yield check.code, check.slug
        yield check.slug, check.code


def _drills(plugins: Plugins) -> Values:
    return (("list", "show them"), *((drill.slug, drill.summary) for drill in plugins.drills.values()))


checks = _completing("checks", _checks)
stop_on = _completing("stop on", lambda plugins: (("nan", "whatever is not finite"), *_checks(plugins)))
strategies = _completing("strategies", lambda plugins: ((one.name, one.summary) for one in plugins.strategies.values()))
drills = _completing("drills", _drills)
models = _completing("models", lambda plugins: ((one.name, one.summary) for one in plugins.models.values()))
data = _completing("data", lambda plugins: ((one.name, one.summary) for one in plugins.data.values()))
formats = _completing("formats", lambda plugins: ((name, "") for name in ("text", *REPORTERS, *plugins.reports)))


def ways(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The ways to notify somebody."""
    return [
        CompletionItem(one.name, help=f"[:{one.where}]") for one in WAYS.values() if one.name.startswith(incomplete)
    ]
