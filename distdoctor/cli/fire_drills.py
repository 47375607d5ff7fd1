"""Planted illnesses: the list with the verdicts to expect, and what a drill adds to a training request."""

from __future__ import annotations

import difflib
import itertools
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from distdoctor.errors import WrongUse
from distdoctor.offers import Drill

FAMILIES = {  # by the first digit of the code
    "1": "collectives and hangs",
    "2": "gradients and parameters",
    "3": "data and samplers",
    "4": "memory",
    "5": "speed and cost",
    "6": "launch and environment",
    "7": "checkpoint and resume",
    "8": "numerics and AMP",
}


@dataclass(frozen=True)
class Listing:
    """What `--fire-drill list` was asked for: the drills of a strategy, or (`about`) all that is known of some of them."""

    strategy: str = ""
    about: tuple[str, ...] = ()
    blocked: tuple[str, ...] = ()


def show_drills(listing: Listing) -> None:
    """Print the drills that can be planted: a line each, or those that were asked about in full."""
    from distdoctor import plugins

    known = plugins.load(listing.blocked).drills
    fitting = [d for d in known.values() if not d.strategies or listing.strategy in ("", *d.strategies)]
    if listing.about:
        for line in _details(listing.about, known):
            click.echo(line)
        return
    for line in _table(sorted(fitting, key=lambda d: (d.code, d.slug))):
        click.echo(_cut(line))


def _table(drills: Sequence[Drill]) -> Iterator[str]:
    width = max((len(drill.slug) for drill in drills), default=0)
    for digit, of_family in itertools.groupby(drills, key=lambda drill: drill.code[2:3]):
        yield FAMILIES.get(digit, "others")
        for drill in of_family:
            yield f"  {drill.slug:<{width}}  {drill.code}  {drill.summary}"
        yield ""
    yield "--fire-drill SLUG plants one; --fire-drill list SLUG tells the verdict to expect"


def _cut(line: str) -> str:
    """On a terminal, what fits; a file or a pipe gets all."""
    width = shutil.get_terminal_size().columns
    return line if len(line) <= width or not sys.stdout.isatty() else line[: width - 1] + "…"


def _details(names: Iterable[str], known: Mapping[str, Drill]) -> Iterator[str]:
    for name in names:
        drill = known.get(name) or next((one for one in known.values() if one.code == name.upper()), None)
        if drill is None:
            raise _unknown(name, known)
        yield f"{drill.slug}  ({drill.code})"
        yield f"  plants  {drill.summary}"
        yield f"  expect  {drill.expect}"
        yield f"  where   {', '.join(drill.strategies) or 'every strategy'}; at least {drill.needs_ranks} ranks"


def _unknown(name: str, known: Iterable[str]) -> WrongUse:
    close = difflib.get_close_matches(name, list(known), n=1)
    guess = f"Did you mean {close[0]}? " if close else ""
    return WrongUse(f"there is no fire drill {name}", way_out=f"{guess}`--fire-drill list` shows what there is.")


def chosen(names: Sequence[str], strategy: str, known: dict[str, Drill], ranks: int) -> list[Drill]:
    """The drills by name. WrongUse: there is none of that name, it cannot be planted there, or it needs more ranks."""
    found = []
    for name in names:
        drill = known.get(name)
        if drill is None:
            raise _unknown(name, known)
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
