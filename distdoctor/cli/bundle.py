"""`distdoctor bundle`: what this host recorded of a job, in one small file that travels."""

from __future__ import annotations

from pathlib import Path

import click
import rich_click


@click.command(cls=rich_click.RichCommand)
@click.argument("path", required=False, type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    metavar="FILE",
    help="Where to write it, for example $(hostname).ddb.",
)
def bundle(path: Path | None, output: Path) -> None:
    """Put a recording (default: the latest run of this working directory) into one small file.

    For a job on many hosts that share no folder: make one on each host, copy them together by srun, kubectl cp or a bucket, and
    `distdoctor examine *.ddb` gives the verdict of the whole job. Exit codes: 0 written, 2 FILE cannot be written, 4 no
    recording.
    """
    from distdoctor.cli.deliver import notice, put
    from distdoctor.launch.post_mortem import open_recording
    from distdoctor.recording.bundle import pack
    from distdoctor.recording.rank_set import named

    recording = open_recording(path)
    data = pack(recording)
    put(data, output)
    ranks = named(tuple(recording.ranks)) if recording.ranks else "no rank"
    notice(f"{ranks} of {recording.world_size} in {output} ({len(data) / 1024:.1f} KiB)")
