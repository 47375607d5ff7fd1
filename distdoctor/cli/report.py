"""`distdoctor report`: a recording's diagnosis as a file for people, programs or CI."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click
import rich_click

from distdoctor.cli.options import ignore, no_plugin, notify, output, output_format


@click.command(cls=rich_click.RichCommand)
@click.argument("path", required=False, type=click.Path(path_type=Path))
@output_format
@output
@ignore
@no_plugin
@notify
def report(path: Path | None, output: Path | None, **values: Any) -> None:
    """Write the report about a run (default: the latest) in any format; always exits with 0."""
    from distdoctor.cli import deliver
    from distdoctor.cli.notifying import Notifier
    from distdoctor.cli.settings import load, load_plugins
    from distdoctor.launch.post_mortem import diagnose, open_recording
    from distdoctor.recording.open import RUNS

    values["output_format"] = deliver.form_by_suffix(values["output_format"], output)
    settings = load(values)
    notifier = Notifier.of(settings)
    plugins = load_plugins(settings)
    deliver.require_format(settings.output_format, plugins, output if values["output_format"] is None else None)
    recording = open_recording(path)
    diagnosis = diagnose(recording, plugins.checks, plugins.remedies, frozenset(settings.ignore))
    width = deliver.width_of(sys.stdout, output)
    words = deliver.rendered(diagnosis, settings.output_format, plugins, width=width)
    deliver.write(words, settings.output_format, output)
    notifier.send(diagnosis, (path or Path(RUNS, "latest")).resolve().name)
