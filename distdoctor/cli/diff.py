"""`distdoctor diff A B`: where two runs of a job part, and what became slower or larger."""

from __future__ import annotations

import json
import math
from pathlib import Path

import click
import rich_click

from distdoctor.errors import CouldNotLook


@click.command(cls=rich_click.RichCommand)
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
@click.option(
    "--slower-by",
    type=click.FloatRange(0),
    metavar="PERCENT",
    help="Exit with 1 if a step of B takes this much longer.",
)
@click.option(
    "--larger-by",
    type=click.FloatRange(0),
    metavar="PERCENT",
    help="Exit with 1 if the peak memory of B is this much higher.",
)
@click.option("--output-format", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.pass_context
def diff(
    ctx: click.Context, a: Path, b: Path, slower_by: float | None, larger_by: float | None, output_format: str
) -> None:
    """Compare two runs: the first collective, loss and gradients that differ, step times and memory. Equal means bit-identical.

    A and B are run folders. Exit code 0, or a gate for CI: 1 if B exceeds --slower-by or --larger-by, 5 if that was not recorded.
    """
    from distdoctor.diagnosis.run_difference import compare_runs
    from distdoctor.launch.post_mortem import open_recording
    from distdoctor.report.printable import printable

    found = compare_runs(open_recording(a), open_recording(b))
    limits = {"step time": slower_by, "memory": larger_by}
    limited = [(one, limit) for one in found if (limit := limits.get(one.what)) is not None]
    beyond = [one.what for one, limit in limited if one.ratio > 1 + limit / 100]  # NaN is not
    unknown = [one.what for one, _ in limited if math.isnan(one.ratio)]
    if output_format == "json":
        rows = [{**vars(one), "ratio": None if math.isnan(one.ratio) else one.ratio} for one in found]
        click.echo(json.dumps({"compared": rows, "beyond": beyond, "unknown": unknown}, indent=1))
    else:
        for one in found:
            mark = "=" if one.equal else "≠" if one.equal is False else " "
            click.echo(printable(f"{mark} {one.what:<12} {one.words}"))
        for what in beyond:
            click.echo(f"{what} is beyond the limit")
    if unknown and not beyond:
        raise CouldNotLook(
            f"{' and '.join(unknown)} could not be compared, so the limit was not checked",
            way_out="Compare runs that were recorded for five steps or more.",
        )
    ctx.exit(int(bool(beyond)))
