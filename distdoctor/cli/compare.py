"""`distdoctor compare`: the same training several ways, really run on this machine, in one table."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import rich_click

from distdoctor.cli.options import no_plugin
from distdoctor.cli.references import try_factories_of
from distdoctor.cli.strategy_options import PREFIX
from distdoctor.cli.training_options import PANEL, training_options, training_values
from distdoctor.errors import WrongUse

if TYPE_CHECKING:
    from distdoctor.diagnosis.speed.strategy_comparison import ComparisonTable, StrategyRow
    from distdoctor.plugins import Plugins
    from distdoctor.workloads.request import TrainingRequest

USUAL = "single,dp,ddp,fsdp,pipeline,amp"
STEPS = 30
MEASURING = "distdoctor.workloads.measuring:plant"  # by name: that module imports torch


@click.command(
    cls=rich_click.RichCommand,
    params=[option for option in training_options() if option.name not in (f"{PREFIX}evaluate", f"{PREFIX}resume")],
    panels=[rich_click.RichOptionPanel(name) for name in ("Options", PANEL)],
    context_settings={"token_normalize_func": lambda name: name.replace("_", "-")},
)
@click.option(
    "--strategies", default=USUAL, show_default=True, metavar="A,B,...", help="What to compare, in this order."
)
@click.option("--nproc", type=click.IntRange(1), default=2, show_default=True, help="Ranks; single and dp take one.")
@click.option("--batch", type=click.IntRange(1), help="As --batch-size.")
@click.option("--backend", metavar="NAME", help="gloo (CPU) or nccl (GPU).  [default: by device]")
@click.option("--timeout", type=click.FloatRange(1), default=600.0, show_default=True, help="Seconds for one strategy.")
@click.option("--output-format", type=click.Choice(["text", "json"]), default="text", help="How to print it.")
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Write it there.")
@no_plugin
@click.pass_context
def compare(ctx: click.Context, /, strategies: str, nproc: int, **values: Any) -> None:
    """Compare strategies on this machine: which is the fastest, and do they train the same model?

    Trains the reference workload (or your --model and --data) with each strategy, one after another, with the same global batch
    and the same seed, and puts the measurements side by side: samples per second, step time, peak memory and its balance, bytes
    sent, the share of waiting for communication, and how far the losses are from those of one process. A failed
    strategy gets a row with the reason. Exit code 1: some strategy failed.
    """
    from distdoctor.cli import deliver
    from distdoctor.cli.settings import load, load_plugins
    from distdoctor.report import strategy_table

    plugins = load_plugins(load({"no_plugin": values["no_plugin"]}))
    names = _chosen(strategies, plugins)
    requests = [_request(name, nproc, values, plugins) for name in names]
    baseline, ranks, _ = requests[0]
    try_factories_of(baseline, values, ranks)
    table = _measured(requests, values["timeout"])
    form = values["output_format"]
    text = strategy_table.to_json(table) if form == "json" else strategy_table.render(table)
    deliver.write(text, form, values["output"])
    ctx.exit(int(any(row.failed for row in table.rows)))


def _chosen(words: str, plugins: Plugins) -> list[str]:
    from distdoctor.diagnosis.speed.strategy_comparison import BASELINE

    names = list(dict.fromkeys(word.strip() for word in words.split(",") if word.strip()))
    unknown = [name for name in names if name not in plugins.strategies]
    if unknown or not names:
        raise WrongUse(
            f"there is no strategy {', '.join(unknown)}" if unknown else "no strategy is named",
            way_out=f"There are {', '.join(plugins.strategies)}.",
        )
    # The others are compared with it, so it comes first.
    return [BASELINE, *(name for name in names if name != BASELINE)]


def _request(name: str, nproc: int, values: dict[str, Any], plugins: Plugins) -> tuple[TrainingRequest, int, str]:
    """What to train, on how many ranks, and why that is not possible ("" when it is)."""
    from distdoctor.workloads.request import make_request, validate

    strategy = plugins.strategies[name]
    ranks = 1 if strategy.world_sizes.startswith("1;") else nproc
    given = training_values(values)
    if values["batch"]:
        given.setdefault("batch_size", values["batch"])
    steps = given.setdefault("steps", STEPS)
    given |= {"epochs": max(given.get("epochs", 1), steps), "evaluate": False}
    models, sources = plugins.models.values(), plugins.data.values()
    request = make_request(
        strategy, given, models=models, sources=sources, drills=[MEASURING], backend=values["backend"]
    )
    try:
        validate(request, ranks)
    except WrongUse as error:
        return request, ranks, str(error)
    return request, ranks, ""


def _measured(requests: list[tuple[TrainingRequest, int, str]], seconds: float) -> ComparisonTable:
    from distdoctor.diagnosis.speed.strategy_comparison import ComparisonTable, losses_of

    rows: list[StrategyRow] = []
    baseline: list[float] | None = None
    for request, ranks, impossible in requests:
        row, results = _row(request, ranks, impossible, seconds, baseline)
        if baseline is None and not row.failed:
            baseline = losses_of(results)
            row = replace(row, apart=0.0)
        elif not rows:
            baseline = []  # the first one, which the others are compared with, has failed
        rows.append(row)
    first = requests[0][0]
    model, data = (name.partition(":")[0].rpartition(".")[2] for name in (first.model, first.data))
    return ComparisonTable(tuple(rows), first.steps, first.batch_size, model, data)


def _row(
    request: TrainingRequest, ranks: int, impossible: str, seconds: float, baseline: list[float] | None
) -> tuple[StrategyRow, Any]:
    from distdoctor.cli.deliver import notice
    from distdoctor.diagnosis.speed.strategy_comparison import StrategyRow, row_of
    from distdoctor.launch import side_by_side

    if impossible:
        return StrategyRow(request.strategy, ranks, failed=impossible), {}
    notice(f"{request.strategy} on {ranks} rank{'s' if ranks > 1 else ''}, {request.steps} steps")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = folder / "request.json"
        replace(request, result=name).write(path)
        trained = side_by_side.train(path, ranks, folder, seconds)
        if trained.failed:
            return StrategyRow(request.strategy, ranks, failed=trained.failed), {}
        precision = request.precision or ("fp16" if request.strategy == "amp" else "fp32")
        row = row_of(
            request.strategy, ranks, request.batch_size, precision, trained.recording, trained.measured,
            trained.results, baseline,
        )  # fmt: skip
        return row, trained.results
