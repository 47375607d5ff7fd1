"""`distdoctor examine PATH`: diagnose a recording after the fact, anywhere, without torch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import rich_click

from distdoctor.cli.options import reporting
from distdoctor.errors import WrongUse

if TYPE_CHECKING:
    from distdoctor.launch.remote_places import TracesAfar
    from distdoctor.recording.recording import Recording


@click.command(cls=rich_click.RichCommand)
@click.argument("places", nargs=-1, metavar="[PATH]...", type=click.Path())
@click.option(
    "--engine",
    "engine_name",
    type=click.Choice(["local", "ray", "dask", "mpi"]),
    default="local",
    help="What reads flight recorder dumps.  [default: local, the processes of this machine]",
)
@reporting
@click.pass_context
def examine(ctx: click.Context, /, places: tuple[str, ...], engine_name: str, **values: Any) -> None:
    """Diagnose a run folder, torch flight recorder dumps, torchcomms' clog, copied stacks, answers of NCCL's RAS or a job log.

    Without PATH it is the latest run of this working directory.
    Several PATHs are the parts of one job on many hosts, in any mix: run folders, host bundles (`distdoctor bundle`),
    documents of `hang-dump --json`. Parts of different jobs are rejected.
    Stacks are what `py-spy dump` (text or --json) or faulthandler printed of each rank: a folder of them, alone or beside dumps
    and a log, the rank in the names (rank0.txt), several looks in folders t0, t1, ...; or in the log itself, under any prefix.
    What lies in one folder is of one job: dumps say which call, stacks at which line, the log who died.
    A folder of logs is one job: torchrun's --log-dir, or one file for each rank, task or node.
    Several answers of NCCL's RAS (files, or a folder of them) are looks at one job: who moved between them is alive.
    PATH `-` reads a job log, stacks or an answer of RAS from standard input; s3://BUCKET/RUN and what
    else fsspec knows is read where it lies.
    Of a checkpoint (torch.save, safetensors, torch.distributed.checkpoint) it lists the contents, without running any of it.
    """
    from distdoctor.cli import deliver
    from distdoctor.cli.settings import load, load_plugins
    from distdoctor.diagnosis.attempts import story
    from distdoctor.diagnosis.hang.coverage import hangs_unexplained
    from distdoctor.launch.post_mortem import Means, diagnose, open_recording
    from distdoctor.report.root_cause import failed

    output, baseline = values.pop("output"), values.pop("baseline")
    values["output_format"] = deliver.form_by_suffix(values["output_format"], output)
    settings = load(values)
    executor = _executor(ctx, engine_name)
    traces: list[TracesAfar] = []
    found = [part for place in places for part in _found_at(ctx, place, executor, traces)]
    if len(found) == 1 and isinstance(found[0], Path) and _is_checkpoint(found[0]):
        ctx.exit(_show_contents(found[0], settings.output_format, output))
    plugins = load_plugins(settings)
    deliver.require_format(settings.output_format, plugins, output if values["output_format"] is None else None)
    recording = open_recording(*found, means=Means(executor, _bytes_of(traces)))
    diagnosis = diagnose(recording, plugins.checks, plugins.remedies, frozenset(settings.ignore))
    diagnosis = deliver.without_accepted(diagnosis, baseline)
    width = deliver.width_of(sys.stdout, output)
    report = deliver.rendered(diagnosis, settings.output_format, plugins, width=width)
    deliver.write(report, settings.output_format, output)
    deliver.step_summary(diagnosis)
    if words := story(recording.job):
        deliver.notice(words)
    deliver.troubles(recording)
    deliver.not_examined(diagnosis)
    job_failed = failed(recording.job)
    unexplained = bool(diagnosis.left_open) and not diagnosis.findings and hangs_unexplained(recording)
    hung = diagnosis.hung or unexplained or (not job_failed and bool(diagnosis.stalled))
    ctx.exit(deliver.exit_code_of_examination(diagnosis, settings, hung=hung, job_failed=job_failed))


def _found_at(
    ctx: click.Context, place: str, executor: Executor | None, traces: list[TracesAfar]
) -> Sequence[Path | Recording]:
    """A path on this machine, for as long as the command runs, or what has been read in a store."""
    from distdoctor.cli.deliver import notice
    from distdoctor.launch.remote_places import brought_here, is_address
    from distdoctor.launch.stored_recordings import read_there

    if not place:
        raise WrongUse(
            "an empty PATH names nothing", way_out="Leave it out for the latest run, or name what to examine."
        )
    if not is_address(place):
        return [Path(place)]
    if found := read_there(place, notice, executor):
        return found
    brought = ctx.with_resource(brought_here(place, notice))
    traces.append(brought.traces)
    return [brought.path]


def _bytes_of(traces: list[TracesAfar]) -> Callable[[Path], bytes]:
    """How a trace is read, in a store or here."""
    from distdoctor.recording.trace.run_folder import bytes_here

    return lambda path: next((one.bytes_of for one in traces if path in one), bytes_here)(path)


def _executor(ctx: click.Context, name: str) -> Executor | None:
    """Who reads dumps, for as long as the command runs; None: the processes of this machine."""
    from distdoctor.launch.engines import engine

    return None if name == "local" else ctx.with_resource(engine(name))


def _is_checkpoint(path: Path) -> bool:
    from distdoctor.recording.checkpoint.contents import is_checkpoint

    return str(path) != "-" and is_checkpoint(path)


def _show_contents(path: Path, output_format: str, output: Path | None) -> int:
    """0, or 1 when something that it names is missing."""
    import json

    from distdoctor.cli import deliver
    from distdoctor.recording.checkpoint.contents import read_contents
    from distdoctor.report.checkpoint import as_text, as_values

    contents = read_contents(path)
    words = json.dumps(as_values(contents), indent=1) + "\n" if output_format == "json" else as_text(contents)
    deliver.write(words, output_format, output)
    return 1 if contents.missing else 0
