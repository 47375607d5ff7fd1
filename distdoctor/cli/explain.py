"""`distdoctor explain CODE`: the page of the handbook."""

from __future__ import annotations

import difflib
from collections.abc import Collection
from typing import TYPE_CHECKING

import click
import rich_click

from distdoctor.cli import completion
from distdoctor.cli.options import no_plugin
from distdoctor.errors import WrongUse

if TYPE_CHECKING:
    from distdoctor.diagnosis.check import Check


@click.command(cls=rich_click.RichCommand)
@click.argument("code", shell_complete=completion.checks)
@no_plugin
def explain(code: str, no_plugin: tuple[str, ...]) -> None:
    """Print what a check means, why it hurts, how we know and what to do. CODE is DD301 or missing-set-epoch."""
    from distdoctor.cli.settings import load, load_plugins

    plugins = load_plugins(load({"no_plugin": no_plugin}))
    by_name = {name.lower(): check for check in plugins.checks.values() for name in (check.code, check.slug)}
    check = by_name.get(code.lower())
    page = check.handbook if check is not None else page_of_rule(code)
    page = page or _page_of_state(code) or _moved(code.lower(), plugins.checks.values())
    if not page:
        close = difflib.get_close_matches(code.lower(), by_name, n=1)
        guess = f"Did you mean {by_name[close[0]].code} {by_name[close[0]].slug}? " if close else ""
        raise WrongUse(f"there is no check {code}", way_out=f"{guess}`distdoctor rules` lists them.")
    click.echo(page)


def page_of_rule(code: str) -> str:
    """The page of an illness that only the source shows; "" when there is none."""
    from distdoctor.lint.rules import all_rules

    return next((one.handbook for one in all_rules() if code.lower() in (one.code.lower(), one.slug)), "")


def _page_of_state(code: str) -> str:
    """The page of what is a code and no check; "" for anything else."""
    from distdoctor.diagnosis import not_examined
    from distdoctor.diagnosis.handbook import page_of

    page = page_of(not_examined.__name__)
    return page if code.lower() in page.partition(":")[0].lower().split() else ""


def _moved(code: str, checks: Collection[Check]) -> str:
    """Where a retired code went, "" when there never was one."""
    heirs = {old: [c for c in checks if old in c.formerly] for check in checks for old in check.formerly}
    for old, found in heirs.items():
        if code in old.lower().split():
            names = ", ".join(f"{one.code} {one.slug}" for one in sorted(found, key=lambda one: one.code))
            return f"{old} is retired: what it told is told by the proper code, at a lower confidence: {names}."
    return ""
