"""`distdoctor watch`: how far a running job is, rank by rank, from another terminal."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click
import rich_click

from distdoctor.cli.options import no_plugin
from distdoctor.report.printable import printable

if TYPE_CHECKING:
    from distdoctor.diagnosis.check import Check
    from distdoctor.recording.recording import Recording


@click.command(cls=rich_click.RichCommand)
@click.argument("path", required=False, metavar="[RUN]", type=click.Path(path_type=Path))
@click.option("--every", type=click.FloatRange(min=0.2), default=1.0, show_default=True, metavar="SECONDS")
@click.option("--once", is_flag=True, help="Print the table once. [default if stdout is not a terminal]")
@no_plugin
def watch(path: Path | None, every: float, once: bool, no_plugin: tuple[str, ...]) -> None:
    """Show the progress of each rank of a running job (default: the latest run): step, speed, memory, current collective,
    and which rank the others wait for, with the findings of the live checks below. It only reads the recording and does not
    affect the ranks.
    """
    from distdoctor.cli.settings import load, load_plugins
    from distdoctor.launch.post_mortem import find_run, open_recording

    settings = load({"no_plugin": no_plugin})
    checks = load_plugins(settings).checks.values()
    folder = find_run(path)

    def look() -> tuple[str, bool]:
        """The text of this moment, and whether the job still runs."""
        recording = open_recording(folder)
        return _words(_live(recording), folder, lambda one: _found(one, checks, settings.ignore)), recording.job.running

    if once or not sys.stdout.isatty():
        click.echo(printable(look()[0]))
        return
    _keep_showing(look, every)


def _live(recording: Recording) -> Recording:
    if not recording.job.running:
        return recording
    now = replace(recording.job, read_at_ns=time.monotonic_ns(), read_wall_ns=time.time_ns())
    return replace(recording, job=now)


def _words(recording: Recording, folder: Path, found: Callable[[Recording], list[str]]) -> str:
    from distdoctor.diagnosis.speed.progress_now import ProgressNow
    from distdoctor.report.live_table import live_table

    seen = (
        f"{len(recording.ranks)} of {recording.world_size} ranks"
        if recording.missing
        else f"{recording.world_size} ranks"
    )
    state = "running" if recording.job.running else "the job is over (`distdoctor report` has its diagnosis)"
    head = f"{state}: {seen}, {os.path.relpath(folder)}"
    table = live_table(ProgressNow.of(recording)).lines()[1:] if recording.ranks else ["no rank has come yet"]
    return "\n".join((head, *table, *(found(recording) if recording.job.running else ())))


def _found(recording: Recording, checks: Iterable[Check], ignored: Iterable[str]) -> list[str]:
    from distdoctor.diagnosis.examination import examine
    from distdoctor.launch.suppressions import suppress

    diagnosis = suppress(examine(recording, checks, live=True), recording.sources, frozenset(ignored))
    return [f"{one.code} {one.confidence}: {one.title}" for one in diagnosis.findings[:5]]


def _keep_showing(look: Callable[[], tuple[str, bool]], every: float) -> None:
    """Until the job is over or Ctrl-C; the last table stays on the screen."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    with Live(console=Console(highlight=False), auto_refresh=False, vertical_overflow="crop") as screen:
        running = True
        while running:
            began = time.monotonic()
            words, running = look()
            screen.update(Text(printable(words)), refresh=True)
            if running:
                # As `top`: looking never takes more than a fifth of a core, however many ranks there are.
                time.sleep(max(every, 4 * (time.monotonic() - began)))
