"""`distdoctor run`: launch a script, a module, a reference training or any other launcher under the probe; watch and diagnose."""

from __future__ import annotations

import difflib
import itertools
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click
import rich_click

from distdoctor.cli import completion, torchrun_options, training_options
from distdoctor.cli.fire_drills import Listing
from distdoctor.cli.options import ON_HANG, notify, reporting
from distdoctor.cli.strategy_options import strategy_options
from distdoctor.errors import WrongUse

# What parsing hands on, by names in click's `meta`.
ARGV, COMMAND, LIST_DRILLS, MORE_OPTIONS = "argv", "command", "list drills", "more options"
HELP_TORCHRUN = "--help-torchrun"
FIRST = ("torchrun_nproc_per_node", "torchrun_nnodes", "torchrun_module")  # what everybody asks torchrun for


class RunCommand(rich_click.RichCommand):
    """The options of torchrun, of distdoctor and of the reference training in one table, made for each call."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        more = ctx.meta.get(MORE_OPTIONS, ())
        first = sorted((o for o in more if o.name in FIRST), key=lambda option: FIRST.index(option.name or ""))
        return [*first, *super().get_params(ctx), *(option for option in more if option not in first)]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[ARGV] = tuple(args)
        if ("--fire-drill", "list") in itertools.pairwise(args):
            ctx.meta[LIST_DRILLS] = _listing(args)
            return []  # the list needs neither torch nor the other options
        if args[:1] == [HELP_TORCHRUN]:
            self._build(ctx, [])
            _show_torchrun(ctx.meta[MORE_OPTIONS])
            return super().parse_args(ctx, ["--help"])
        args, ctx.meta[COMMAND] = self._build(ctx, args)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            raise self._better(error, ctx) from None

    def _build(self, ctx: click.Context, args: list[str]) -> tuple[list[str], tuple[str, ...] | None]:
        """Collect the options that hold for these arguments. Returns (our arguments, another launcher's command line)."""
        taken = {spelling for option in self.params for spelling in option.opts}
        shared = training_options.training_options()
        taken |= {spelling for option in shared for spelling in option.opts}
        completing = ctx.resilient_parsing  # then nothing but names is needed, and soon
        offers = completion.torchrun_options if completing else torchrun_options.torchrun_options
        known = [*offers(taken), *shared]
        usual = [*known, *super().get_params(ctx)]
        blocked = _values_of(_before_script(args, usual), "--no-plugin")
        own = completion.strategy_options() if completing else _strategy_options(blocked)
        before = _before_script(args, [*usual, *itertools.chain.from_iterable(own.values())])
        name = next(iter(_values_of(before, "--strategy")), "")
        if name and name not in own and not completing:
            raise _unknown("strategy", name, own)
        ctx.meta[MORE_OPTIONS] = [*known, *own.get(name, [])]
        for option in known:  # what few people need is told where it is asked for
            option.hidden = option.name not in FIRST and (option not in shared or not name)
        if args[len(before) : len(before) + 1] != ["--"]:
            return args, None
        after = args[len(before) + 1 :]
        if after and after[0].endswith(".py") and shutil.which(after[0]) is None:
            return [*before, *after], None  # a script, as torchrun takes what follows `--`
        return before, tuple(after)

    def _better(self, error: click.NoSuchOption, ctx: click.Context) -> click.UsageError:
        """A misspelt option with the nearest spelling; there are a hundred, so one guess is enough."""
        known = [s for option in self.get_params(ctx) for s in (*option.opts, *option.secondary_opts)]
        close = difflib.get_close_matches(error.option_name, known, n=1)
        guess = f"Did you mean {close[0]}?" if close else "Options of your script come after it."
        return click.UsageError(f"there is no option {error.option_name}\n{guess}", ctx)


def _strategy_options(blocked: list[str]) -> dict[str, list[click.Option]]:
    """Each installed strategy's own options."""
    from distdoctor import plugins

    found = plugins.load(blocked).strategies
    return {name: strategy_options(strategy) for name, strategy in found.items()}


def _listing(args: list[str]) -> Listing:
    """Words after `list` are drills to be told about."""
    after = args[list(itertools.pairwise(args)).index(("--fire-drill", "list")) + 2 :]
    about = tuple(itertools.takewhile(lambda word: not word.startswith("-"), after))
    return Listing(next(iter(_values_of(args, "--strategy")), ""), about, tuple(_values_of(args, "--no-plugin")))


def _show_torchrun(options: Iterable[click.Option]) -> None:
    """Torchrun's own options beside ours; those of the training stay hidden."""
    for option in options:
        option.hidden = not (option.name or "").startswith(torchrun_options.PREFIX)


def _before_script(args: list[str], options: Sequence[click.Parameter]) -> list[str]:
    """The arguments up to the first that is neither an option nor an option's value."""
    with_value = {
        spelling
        for option in options
        if isinstance(option, click.Option) and not option.is_flag
        for spelling in option.opts
    }
    number = 0
    while number < len(args) and args[number].startswith("-") and args[number] != "--":
        number += 2 if torchrun_options.dashed(args[number]) in with_value else 1
    return args[:number]


def _values_of(args: list[str], flag: str) -> list[str]:
    """The values of an option, as `--flag value` or `--flag=value`."""
    pairs = zip(args, [*args, ""][1:], strict=True)
    return [
        after if token == flag else token.partition("=")[2]
        for token, after in pairs
        if token == flag or token.startswith(flag + "=")
    ]


def _unknown(what: str, name: str, known: Iterable[str]) -> WrongUse:
    close = difflib.get_close_matches(name, list(known), n=1)
    guess = f"Did you mean {close[0]}? " if close else ""
    return WrongUse(f"there is no {what} {name}", way_out=f"{guess}There are {', '.join(known)}.")


@click.command(
    cls=RunCommand,
    panels=[rich_click.RichOptionPanel(name) for name in ("Options", training_options.PANEL, torchrun_options.PANEL)],
    context_settings={
        "allow_interspersed_args": False,
        "help_option_names": ["-h", "--help"],
        "token_normalize_func": lambda name: name.replace("_", "-"),  # options only differ in that
    },
)
@click.option(
    "--strategy",
    metavar="NAME",
    shell_complete=completion.strategies,
    help="Run a reference training: ddp, fsdp, ...",
)
@click.option("--backend", metavar="NAME", help="gloo, nccl or mpi, for --strategy.")
@click.option(
    "--fire-drill",
    "drills",
    multiple=True,
    metavar="ILLNESS",
    shell_complete=completion.drills,
    help="Plant a fault in it; `list` names them.",
)
@click.option(
    "--on-hang",
    type=click.Choice(ON_HANG),
    help="At a hang: report, abort if it is proven, or wait.  [default: report on a terminal, else abort]",
)
@click.option(
    "--hang-after",
    type=click.FloatRange(min=1),
    metavar="SECONDS",
    help="Treat a wait this long as a hang.  [default: never]",
)
@click.option(
    "--stop-on",
    multiple=True,
    metavar="nan|CODE",
    shell_complete=completion.stop_on,
    help="End the job once this is certain or hangs it.",
)
@click.option(
    "--try-fix/--no-try-fix",
    help="Rerun a copy with the first finding's patch.",
)
@click.option(
    "--run-dir", type=click.Path(path_type=Path, file_okay=False), metavar="FOLDER", help="Record into this folder."
)
@click.option("--streams", metavar="A,B", help="Record only these: collectives,samples,...")
@click.option("--off", is_flag=True, help="Launch only, as with DISTDOCTOR=0.")
@click.option(HELP_TORCHRUN, is_flag=True, expose_value=False, help="Show torchrun's other options (all work).")
@notify
@reporting
@click.argument("script", nargs=-1, type=click.UNPROCESSED, metavar="[SCRIPT | -m MODULE] [ARGS...]")
@click.pass_context
def run(ctx: click.Context, /, **values: Any) -> None:
    """Launch a job under the probe, watch it, and diagnose what goes wrong.

    A script or module is started as torchrun would, with all of torchrun's options, unmodified. A reference training
    (--strategy) answers: is it my code or my machine? Put any other launcher after two dashes. If the report on stdout is not
    text, the job's output goes to stderr.

    \b
    distdoctor run --nproc 4 train.py --lr 0.1
    distdoctor run --nproc 2 -o report.html -m package.train
    distdoctor run --strategy ddp --nproc 2      (its options: add --help)
    distdoctor run -- accelerate launch train.py
    """
    if LIST_DRILLS in ctx.meta:
        from distdoctor.cli.fire_drills import show_drills

        show_drills(ctx.meta[LIST_DRILLS])
        return
    from distdoctor.cli.run_job import execute

    ctx.exit(execute(ctx.meta[ARGV], values, ctx.meta[COMMAND]))
