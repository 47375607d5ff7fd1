"""`distdoctor plugins`: what is loaded, and from where."""

from __future__ import annotations

from collections.abc import Sized

import click
import rich_click

from distdoctor.cli.options import no_plugin


@click.command(cls=rich_click.RichCommand)
@no_plugin
def plugins(no_plugin: tuple[str, ...]) -> None:
    """List the plugins with their distributions, what they offer, and why any of them failed to load."""
    from distdoctor import plugins
    from distdoctor.cli.settings import load

    found = plugins.load(load({"no_plugin": no_plugin}).no_plugin)
    offered: dict[tuple[str, str], Sized] = {
        ("check", "checks"): found.checks,
        ("remedy", "remedies"): found.remedies,
        ("strategy", "strategies"): found.strategies,
        ("model", "models"): found.models,
        ("data set", "data sets"): found.data,
        ("drill", "drills"): found.drills,
        ("report format", "report formats"): found.reports,
    }
    for plugin in found.loaded:
        state = "blocked" if plugin.blocked else plugin.trouble or "loaded"
        click.echo(f"{plugin.name:<12} {plugin.distribution} {plugin.version}  {plugin.module}  {state}")
    click.echo(
        ", ".join(f"{len(things)} {one if len(things) == 1 else more}" for (one, more), things in offered.items())
    )
