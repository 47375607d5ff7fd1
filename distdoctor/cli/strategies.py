"""`distdoctor strategies`: the ways of training that can be launched, with their options."""

from __future__ import annotations

import click
import rich_click

from distdoctor.cli.options import no_plugin


@click.command(cls=rich_click.RichCommand)
@no_plugin
def strategies(no_plugin: tuple[str, ...]) -> None:
    """List the strategies with their options, the models and the datasets."""
    from distdoctor.cli.settings import load, load_plugins

    found = load_plugins(load({"no_plugin": no_plugin}))
    for strategy in found.strategies.values():
        ranks = f"  (ranks: {strategy.world_sizes})" if strategy.world_sizes != "any" else ""
        click.echo(f"{strategy.name:<15} {strategy.summary}{ranks}")
        for option in strategy.options:
            click.echo(f"    --{option.name:<26} {option.help}")
    click.echo("\nmodels")
    for model in found.models.values():
        click.echo(f"    {model.name:<15} {model.summary}")
    click.echo("data")
    for source in found.data.values():
        click.echo(f"    {source.name + (':PATH' if source.needs_path else ''):<15} {source.summary}")
