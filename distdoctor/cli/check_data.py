"""`distdoctor check-data`: launch a job, or only walk its loaders, and account for every sample of every rank."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from distdoctor.cli.check_grads import _names_a_job
from distdoctor.cli.references import require_function
from distdoctor.cli.run import ARGV, COMMAND, LIST_DRILLS, RunCommand, run
from distdoctor.errors import WrongUse

if TYPE_CHECKING:
    from distdoctor.recording.recording import Recording

DEFAULTS = ("--strategy", "ddp", "--epochs", "2")
"""What is trained where the command line names neither a script nor a strategy nor a loader; on two ranks."""
WALK = "distdoctor.workloads.walk_loaders"  # by name: it imports torch
WALK_EPOCHS = 2
WALK_STREAMS = "collectives,progress,samples,environment"


class CheckDataCommand(RunCommand):
    """The options of `run`, and a reference training where nothing else is asked for."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Of the reference training's options, --save and --resume are ours here: we make the checkpoint."""
        ours = ("training_save", "training_resume")
        return [option for option in super().get_params(ctx) if option.name not in ours]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given = {arg.partition("=")[0].replace("_", "-") for arg in args}
        walks = bool({"--loader", "--dry"} & given)
        if not _names_a_job(args):
            pairs = [] if walks else [DEFAULTS[0:2], DEFAULTS[2:4]]
            usual = [word for pair in pairs if pair[0] not in given for word in pair]
            ranks = [] if {"--nproc", "--nproc-per-node"} & given else ["--nproc", "2"]
            args = [*usual, *ranks, *args]
        return super().parse_args(ctx, args)


@click.command(
    "check-data",
    cls=CheckDataCommand,
    params=[
        *(parameter for parameter in run.params if not isinstance(parameter, click.Argument)),
        click.Option(
            ["--loader"],
            metavar="PACKAGE.MODULE:FACTORY",
            help="Read the loaders that this function returns in each rank, without training (--epochs times, by default 2).",
        ),
        click.Option(["--dry"], is_flag=True, help="Only read loaders; needs --loader."),
        click.Option(
            ["--resume", "resumes"],
            is_flag=True,
            help="Run the job twice more, up to a checkpoint and resumed from it: which samples repeat or are lost?",
        ),
        click.Option(
            ["--at"],
            type=click.IntRange(1),
            metavar="STEP",
            help="With --resume and --strategy: end it there.  [default: 2/3]",
        ),
        click.Option(
            ["--stop-args"],
            metavar="ARGS",
            help="With --resume: arguments that make your script save a checkpoint and exit.",
        ),
        click.Option(
            ["--kill-at"],
            type=click.IntRange(1),
            metavar="STEP",
            help="With --resume, instead of --stop-args: kill your script's ranks after this many optimizer steps.",
        ),
        click.Option(
            ["--resume-args"], metavar="ARGS", help="With --resume: arguments that make your script resume from it."
        ),
        *(parameter for parameter in run.params if isinstance(parameter, click.Argument)),
    ],
    panels=run.panels,
    context_settings=run.context_settings,
)
@click.pass_context
def check_data(ctx: click.Context, /, loader: str | None, dry: bool, resumes: bool, **values: Any) -> None:
    """Is every rank reading the right data? Account for every sample of every loader, epoch and rank.

    By default this trains the reference workload with DistributedDataParallel on two ranks; with --strategy, another
    strategy; with a script or module, that one, unmodified. With --loader nothing is trained: real ranks only read that
    function's loaders. The first line is the answer. The table below it has, for each loader, epoch and rank, how many
    samples were drawn, how many different ones, how many as padding, which ranks drew the same ones, which were never
    drawn, and which earlier epoch had the same order.

    With --resume the job runs three times: uninterrupted, up to a checkpoint, and resumed from it. A reference training
    saves and resumes by itself; a script needs its own arguments: `check-data --resume --stop-args "--max-steps 50
    --save c.pt" --resume-args "--resume c.pt" train.py`. With `--kill-at 50` instead of --stop-args its ranks are
    killed there, as when a machine fails: samples drawn after their last checkpoint may repeat. Samples that repeat or
    are lost are counted, epoch by epoch, with the likely cause (DD704).
    """
    if LIST_DRILLS in ctx.meta:
        from distdoctor.cli.fire_drills import show_drills

        show_drills(ctx.meta[LIST_DRILLS])
        return
    if loader or dry:
        _walk_instead(loader, values)
    from distdoctor.cli.resume_job import Protocol, compare_runs
    from distdoctor.cli.run_job import execute

    protocol = Protocol.of(values, ctx.meta[COMMAND]) if resumes else None
    text = values["output_format"] in (None, "text") or values["output"] is not None

    def afterwards(folder: Path) -> None:
        if protocol is not None:
            compare_runs(folder, protocol)

    def answer(recording: Recording) -> None:
        _show(recording, values, text=text)

    ctx.exit(execute(ctx.meta[ARGV], values, ctx.meta[COMMAND], afterwards, answer=answer))


def _walk_instead(loader: str | None, values: dict[str, Any]) -> None:
    """Launch the walk over the loaders in the place of a training."""
    if not loader:
        raise WrongUse(
            "--dry needs to know which loaders to read",
            way_out="Add --loader PACKAGE.MODULE:FACTORY, a function that returns them.",
        )
    if values["strategy"] or values["script"]:
        raise WrongUse(
            f"both --loader {loader} and {values['strategy'] or values['script'][0]} are asked for",
            way_out="--loader only reads loaders; leave it out to train.",
        )
    require_function("--loader", loader)
    values["loader"] = loader
    epochs = values.pop("training_epochs", None) or WALK_EPOCHS
    values["script"] = (WALK, loader, str(epochs))
    values["torchrun_module"] = True
    values["streams"] = values["streams"] or WALK_STREAMS


def _show(recording: Recording, values: dict[str, Any], *, text: bool) -> None:
    """The answer and the table, above the report. `text`: stdout is for people."""
    from distdoctor.cli import deliver
    from distdoctor.cli.settings import load, load_plugins
    from distdoctor.launch.post_mortem import diagnose
    from distdoctor.report import sample_table

    settings = load({"no_plugin": values["no_plugin"], "ignore": values["ignore"]})
    found = load_plugins(settings)
    checks = {code: check for code, check in found.checks.items() if check.area == "data"}
    diagnosis = diagnose(recording, checks, found.remedies, frozenset(settings.ignore))
    unasked = [one.code for one in diagnosis.could_not_look]
    table = sample_table.render(recording, diagnosis.findings, str(Path.cwd()), unasked)
    deliver.show(table + "\n", sys.stdout if text else sys.stderr)
