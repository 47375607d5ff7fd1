"""Planted illnesses: the list with the verdicts to expect, and what a drill adds to a training request."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any

import click

from distdoctor.errors import WrongUse
from distdoctor.offers import Drill


def show_drills(strategy: str, blocked: Iterable[str] = ()) -> None:
    """Print the drills that can be planted, all or in one strategy."""
    from distdoctor import plugins

    found = plugins.load(blocked)
    fitting = [d for d in found.drills.values() if not strategy or not d.strategies or strategy in d.strategies]
    for drill in sorted(fitting, key=lambda d: (d.code, d.slug)):
        where = f", only {'/'.join(drill.strategies)}" if drill.strategies else ""
        click.echo(f"{drill.slug}  ({drill.code}, at least {drill.needs_ranks} ranks{where})")
        click.echo(f"  plants  {drill.summary}")
        click.echo(f"  expect  {drill.expect}")


def chosen(names: Sequence[str], strategy: str, known: dict[str, Drill], ranks: int) -> list[Drill]:
    """The drills by name. WrongUse: there is none of that name, it cannot be planted there, or it needs more ranks."""
    found = []
    for name in names:
        drill = known.get(name)
        if drill is None:
            close = difflib.get_close_matches(name, known, n=1)
            guess = f"Did you mean {close[0]}? " if close else ""
            raise WrongUse(f"there is no fire drill {name}", way_out=f"{guess}`--fire-drill list` shows what there is.")
        if drill.strategies and strategy not in drill.strategies:
            raise WrongUse(
                f"the fire drill {name} cannot be planted in {strategy}",
                way_out=f"Take --strategy {' or '.join(drill.strategies)}.",
            )
        if ranks < drill.needs_ranks:
            raise WrongUse(
                f"the fire drill {name} needs {drill.needs_ranks} ranks, and there are {ranks}",
                way_out=f"Add --nproc {drill.needs_ranks}.",
            )
        found.append(drill)
    return found


def settings_of(drills: Iterable[Drill]) -> dict[str, Any]:
    """What the workload needs so that the illnesses show, unless the user says otherwise."""
    return {key: value for drill in drills for key, value in drill.arguments.items()}


def deep_streams(drills: Iterable[Drill]) -> frozenset[str]:
    """What has to be looked at in depth so that these illnesses show."""
    return frozenset({drill.deep for drill in drills} - {""})
