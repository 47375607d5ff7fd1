"""`distdoctor check-grads`: launch a job and look at every gradient, parameter and optimizer state of every step."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from distdoctor.cli.run import ARGV, COMMAND, LIST_DRILLS, RunCommand, run
from distdoctor.errors import DoctorError, WrongUse

if TYPE_CHECKING:
    from distdoctor.recording.recording import Recording

DEFAULTS = ("--strategy", "ddp", "--nproc", "2", "--steps", "20", "--no-evaluate")
"""What is trained where the command line names neither a script nor a strategy."""


class CheckGradsCommand(RunCommand):
    """The options of `run`, and a reference training where nothing else is asked for."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not _names_a_job(args):
            args = [*_missing_defaults(args), *args]
        return super().parse_args(ctx, args)


def _names_a_job(args: list[str]) -> bool:
    words = ("--strategy", "-m", "--module", "--no-python", "--help", "-h", "--")
    if any(arg in words or arg.startswith("--strategy=") for arg in args):
        return True
    return any(arg.endswith(".py") for arg in args)


def _missing_defaults(args: list[str]) -> list[str]:
    given = {arg.partition("=")[0].replace("_", "-") for arg in args}
    pairs = [DEFAULTS[0:2], DEFAULTS[2:4], DEFAULTS[4:6], DEFAULTS[6:]]
    spellings = {"--nproc": {"--nproc", "--nproc-per-node"}, "--steps": {"--steps", "--epochs"}}
    return [word for pair in pairs if not spellings.get(pair[0], {pair[0]}) & given for word in pair]


@click.command(
    "check-grads",
    cls=CheckGradsCommand,
    params=[
        *(parameter for parameter in run.params if not isinstance(parameter, click.Argument)),
        click.Option(
            ["--every"], type=click.IntRange(1), default=1, show_default=True, help="Sample one step in this many."
        ),
        click.Option(
            ["--against"],
            type=click.Choice(["single"]),
            help="Compare the gradients with one process on the same batch.",
        ),
        *(parameter for parameter in run.params if isinstance(parameter, click.Argument)),
    ],
    panels=run.panels,
    context_settings=run.context_settings,
)
@click.pass_context
def check_grads(ctx: click.Context, /, every: int, against: str | None, **values: Any) -> None:
    """Are my replicas still the same model? Compare gradients, parameters and optimizer state of all ranks, bit by bit.

    By default this trains the reference workload with DistributedDataParallel on two ranks; with --strategy, another strategy;
    with a script or module, that one, unmodified. Every step (or one in --every) is sampled: the first step, parameter and
    rank that differ are named, with the likely cause and the fix, above a table of all layers. NaNs are traced to the rank and
    layer where they arose. --against single trains one more step both ways and compares the gradients themselves, within the
    bound that rounding allows; a wrong factor is named.
    """
    if LIST_DRILLS in ctx.meta:
        from distdoctor.cli.fire_drills import show_drills

        show_drills(ctx.meta[LIST_DRILLS])
        return
    if against and not values["strategy"]:
        raise WrongUse(
            "--against single needs a reference training, whose batches one process can read as well",
            way_out="Add --strategy NAME, with your own model as --model package.module:factory.",
        )
    from distdoctor.cli.run_job import execute
    from distdoctor.recording.trace.probe_settings import ProbeSettings

    probe = ProbeSettings(deep=frozenset({"gradients"}), every=every)
    seen = BaselineSeen()
    compare = partial(_compare, seen=seen, blocked=values["no_plugin"]) if against else lambda folder: None
    code = execute(ctx.meta[ARGV], values, ctx.meta[COMMAND], compare, probe, seen.answer)
    stream = sys.stdout if values["output_format"] in (None, "text") or values["output"] is not None else sys.stderr
    if seen.recording is not None:
        _show_table(seen.recording, stream)
    if seen.trouble is not None:
        raise seen.trouble
    ctx.exit(code)


@dataclass
class BaselineSeen:
    """What is known once the job is over: its recording, and why there is no comparison."""

    recording: Recording | None = None
    trouble: DoctorError | None = None

    def answer(self, recording: Recording) -> None:
        """Keep what the report is made of, for the table below it."""
        self.recording = recording


def _compare(folder: Path, seen: BaselineSeen, blocked: tuple[str, ...]) -> None:
    """Train one step both ways and leave the comparison in the run folder, for the check and the table."""
    from distdoctor import plugins
    from distdoctor.cli import deliver
    from distdoctor.recording.trace.run_folder import read_job
    from distdoctor.workloads import comparison
    from distdoctor.workloads.request import TrainingRequest

    job = read_job(folder)
    single = plugins.load(blocked).strategies["single"].train
    deliver.notice("training one step both ways, to compare the gradients with those of one process")
    try:
        request = TrainingRequest.read(folder / "request.json")
        comparison.compare_with_single(request, job.world_size if job else 1, single).write(folder)
    except DoctorError as trouble:
        seen.trouble = trouble


def _show_table(recording: Recording, stream: TextIO) -> None:
    """The verdict by layer."""
    from distdoctor.cli import deliver
    from distdoctor.report import layer_table, replica_table

    deliver.show("\n" + replica_table.render(recording), stream)
    if recording.comparison is not None:
        deliver.show("\n" + layer_table.render(recording.comparison), stream)
