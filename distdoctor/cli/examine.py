"""`distdoctor examine PATH`: diagnose a recording after the fact, anywhere, without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from distdoctor.cli.options import reporting


@click.command()
@click.argument("paths", nargs=-1, metavar="[PATH]...", type=click.Path(path_type=Path))
@reporting
@click.pass_context
def examine(ctx: click.Context, /, paths: tuple[Path, ...], **values: Any) -> None:
    """Diagnose a run folder, torch flight recorder dumps or a job log (default: the latest run of this working directory).

    Several PATHs are the parts of one job on many hosts, of any kind and mixed: run folders, host bundles (`distdoctor bundle`),
    documents of `hang-dump --json`. Parts that belong to different jobs are refused.
    PATH `-` reads a job log from standard input.
    """
    from distdoctor.cli import deliver
    from distdoctor.cli.settings import load, load_plugins
    from distdoctor.diagnosis.attempts import story
    from distdoctor.launch.post_mortem import diagnose, read_all
    from distdoctor.report.root_cause import failed

    output = values.pop("output")
    settings = load(values)
    plugins = load_plugins(settings)
    deliver.require_format(settings.output_format, plugins)
    recording = read_all(paths)
    diagnosis = diagnose(recording, plugins.checks, plugins.remedies, frozenset(settings.ignore))
    deliver.write(deliver.rendered(diagnosis, settings.output_format, plugins), settings.output_format, output)
    if words := story(recording.job):
        deliver.notice(words)
    deliver.troubles(recording)
    deliver.not_examined(diagnosis)
    job_failed = failed(recording.job)
    hung = not job_failed and bool(diagnosis.stalled)
    ctx.exit(deliver.exit_code_of_examination(diagnosis, settings, hung=hung, job_failed=job_failed))
