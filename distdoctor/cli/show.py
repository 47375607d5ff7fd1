"""`distdoctor show`: what a recording holds, rank by rank, in the terminal."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
import rich_click

from distdoctor.cli.options import no_plugin
from distdoctor.report.printable import printable

if TYPE_CHECKING:
    from distdoctor.diagnosis.diagnosis import Diagnosis
    from distdoctor.recording.recording import RankTrace, Recording

MOST_RANKS = 64


@click.command(cls=rich_click.RichCommand)
@click.argument("path", required=False, type=click.Path(path_type=Path))
@no_plugin
def show(path: Path | None, no_plugin: tuple[str, ...]) -> None:
    """Show a run (default: the latest), or a bundle: its ranks and groups, what was found, what was not examined and why, and
    what distdoctor could not do."""
    from distdoctor.cli.settings import load, load_plugins
    from distdoctor.launch.post_mortem import diagnose, find_run, open_recording

    plugins = load_plugins(load({"no_plugin": no_plugin}))
    folder = path if path is not None and path.is_file() and path.suffix != ".trace" else find_run(path)
    recording = open_recording(folder)
    diagnosis = diagnose(recording, plugins.checks, plugins.remedies)
    for line in (f"run    {folder}", *_job(recording), *_ranks(recording), *_groups(recording), *_examined(diagnosis)):
        click.echo(printable(line))
    for trouble in recording.troubles:
        click.echo(printable(f"trouble  {f'rank {trouble.rank}: ' if trouble.rank >= 0 else ''}{trouble.what}"))


def _job(recording: Recording) -> list[str]:
    job = recording.job
    state = (
        "running"
        if job.running
        else "its end was not seen"
        if job.end_unseen
        else f"exit code {'unknown' if job.exit_code is None else job.exit_code}"
    )
    return [
        f"argv   {' '.join(map(str, job.argv))}",
        f"job    {recording.world_size} ranks, launched by {job.launcher or 'someone else'}, {state}",
    ]


def _ranks(recording: Recording) -> list[str]:
    lines = [f"  {rank:>5}  {_rank(log, recording)}" for rank, log in list(recording.ranks.items())[:MOST_RANKS]]
    left = len(recording.ranks) - len(lines)
    missing = [f"  no recording of {len(recording.missing)} ranks"] if recording.missing else []
    return ["ranks", *lines, *([f"  and {left} more"] if left else []), *missing]


def _rank(log: RankTrace, recording: Recording) -> str:
    from distdoctor.report.root_cause import RootCause

    steps = int(log.steps["step"][-1]) if len(log.steps) else 0
    calls = int(log.calls["seq"][-1]) if len(log.calls) else 0
    last = log.call(log.calls[-1]) if len(log.calls) else None
    end = recording.job.ends.get(log.rank)
    ended = RootCause(log.rank, end.exit_code, end.signal).words if end else "no end seen"
    by = " (ended by the launcher)" if end and end.ended_by_launcher else ""
    where = f", last {last.words} at {last.site}" if last else ""
    return f"pid {log.pid} on {log.host}: {steps} steps, {calls} calls{where}; {ended}{by}"


def _groups(recording: Recording) -> list[str]:
    from distdoctor.recording.rank_set import named

    groups = {group.name: group for log in recording.ranks.values() for group in log.group_list()}
    return [
        "groups",
        *(
            f"  {g.name:<12} {named(g.ranks)}  {g.backend}  made at {g.made_at}"
            for g in list(groups.values())[:MOST_RANKS]
        ),
    ]


def _examined(diagnosis: Diagnosis) -> list[str]:
    from distdoctor.cli import deliver
    from distdoctor.report.text import headline
    from distdoctor.report.verdict import summary, verdict

    width = deliver.width_of(sys.stdout)
    found = [line for one in diagnosis.findings for line in headline(one, os.getcwd(), width)]
    reasons: dict[str, list[str]] = {}
    for one in diagnosis.not_examined:
        reasons.setdefault(one.reason, []).append(one.code)
    return [
        f"checks {len(diagnosis.examined)} made: {summary(diagnosis)}",
        *(f"  {line}" for line in found or [verdict(diagnosis)]),
        *(["not examined"] if reasons else []),
        *(f"  {reason}: {' '.join(codes)}" for reason, codes in reasons.items()),
    ]
