"""`distdoctor env`: versions, devices and limits, as needed in a bug report."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import click
import rich_click


@click.command(cls=rich_click.RichCommand)
@click.option("--output-format", type=click.Choice(["text", "json"]), default="text", help="How to print it.")
@click.option("--json", "as_json", is_flag=True, help="Short for --output-format json.")
@click.option(
    "--within",
    type=click.FloatRange(0.1),
    default=1.6,  # the command itself takes a few tenths more, and is to be back in two seconds
    show_default=True,
    metavar="SECONDS",
    help="How long drivers and torch may take to answer.",
)
def env(output_format: str, as_json: bool, within: float) -> None:
    """Print what a bug report needs: versions, GPUs, networks, limits, container, scheduler and variables that explain a job.

    What may hang, a driver or torch, is asked in processes of its own; what does not answer in time is named. Variables are
    kept by an allow-list, without what looks like a secret.
    """
    from distdoctor.cli.bug_report import facts

    found = facts(within)
    if as_json or output_format == "json":
        click.echo(json.dumps(found, indent=2))
        return
    lines = [line for name, value in found.items() for line in _lines(name, value)]
    width = max(len(name) for name, _ in lines)
    for name, value in lines:
        click.echo(f"{name:<{width}}  {value}")


def _lines(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """(name, value) of each line; of what holds several things one line each."""
    from distdoctor.report.printable import printable

    if isinstance(value, dict):
        for key, one in value.items():
            yield from _lines(f"{name} {key}", one)
    elif (isinstance(value, list) and any(isinstance(one, dict) for one in value)) or name == "gpu_links":
        for number, one in enumerate(value):
            words = ", ".join(f"{k} {_word(v)}" for k, v in one.items() if v) if isinstance(one, dict) else str(one)
            yield f"{name} {number}", printable(words)
    else:
        yield name, printable(_word(value))


def _word(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return "-" if value is None else str(value)
