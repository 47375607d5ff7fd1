"""`distdoctor advise`: which way of training fits a machine, predicted, and on request tried."""

from __future__ import annotations

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
    from distdoctor.planning.machine import Machine
    from distdoctor.plugins import Plugins
    from distdoctor.workloads.request import TrainingRequest

KNOWN = (
    "model",
    "data",
    "batch_size",
    "accumulate",
    "precision",
    "optimizer",
    "checkpoint_activations",
    "offload",
    "lr",
)
PER_DEVICE = 4
"""Samples per device where no batch is named."""


@click.command(
    cls=rich_click.RichCommand,
    params=[option for option in training_options() if (option.name or "").removeprefix(PREFIX) in KNOWN],
    panels=[rich_click.RichOptionPanel(name) for name in ("Options", PANEL)],
    context_settings={"token_normalize_func": lambda name: name.replace("_", "-")},
)
@click.option("--gpus", metavar="NxMEMORY", help="The machine, such as 8x80GiB.")
@click.option("--batch", type=click.IntRange(1), help=f"As --batch-size.  [default: {PER_DEVICE} per device]")
@click.option(
    "--headroom",
    type=click.FloatRange(0, 0.9),
    default=0.08,
    show_default=True,
    help="Share of each device to keep free.",
)
@click.option(
    "--tflops",
    type=click.FloatRange(0.001),
    help="Speed of one device, 10^12 operations per second.  [default: 125 in 16 bits, 62 in fp32]",
)
@click.option(
    "--link-gb",
    type=click.FloatRange(0.001),
    default=200.0,
    show_default=True,
    help="Bandwidth of one device, 10^9 bytes per second.",
)
@click.option(
    "--device",
    type=click.Choice(["cuda", "cpu"]),
    default="cuda",
    show_default=True,
    help="The device whose kernels and allocator to predict.",
)
@click.option(
    "--try",
    "remedy",
    metavar="REMEDY",
    help="Train a few steps without and with this remedy, and compare prediction and measurement.",
)
@click.option(
    "--find-batch-size", is_flag=True, help="Train at the memory limit: find the largest batch that fits into --gpus."
)
@click.option(
    "--strategy", metavar="NAME", help="For --try and --find-batch-size.  [default: ddp, single on one device]"
)
@click.option(
    "--nproc", type=click.IntRange(1), help="Ranks for --try and --find-batch-size.  [default: 2, or as --gpus says]"
)
@click.option(
    "--backend", metavar="NAME", help="gloo (CPU) or nccl (GPU), for --try and --find-batch-size.  [default: by device]"
)
@click.option("--output-format", type=click.Choice(["text", "json"]), default="text", help="How to print it.")
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Write it there.")
@no_plugin
@click.pass_context
def advise(ctx: click.Context, /, **values: Any) -> None:
    """Predict which strategy fits a machine, what each remedy saves, and how large the batch may be.

    Nothing is trained: the model is gone through without data, once per way, whatever its size. The plans that fit come first,
    cheapest first, with their memory by category, what a device sends per step and the largest batch. --try REMEDY trains the
    reference workload (or your --model) for a few steps without and with one remedy and holds the prediction against what was
    allocated; --find-batch-size trains at the edge of a budget. Exit code 1: nothing fits.
    """
    from distdoctor.cli.settings import load, load_plugins

    plugins = load_plugins(load({"no_plugin": values["no_plugin"]}))
    if values["remedy"]:
        ctx.exit(_try(values, plugins))
    if values["gpus"] is None:
        raise WrongUse("--gpus is missing", way_out="Describe the machine: --gpus 8x80GiB.")
    from distdoctor.planning.machine import Machine

    machine = Machine.parse(values["gpus"], values["headroom"])
    ctx.exit(
        _find_batch_size(values, plugins, machine) if values["find_batch_size"] else _advise(values, plugins, machine)
    )


def _advise(values: dict[str, Any], plugins: Plugins, machine: Machine) -> int:
    from distdoctor.cli import deliver
    from distdoctor.planning import advice_json, advice_text
    from distdoctor.planning.advice import advise, require_known
    from distdoctor.planning.machine import Speeds

    given = {"link_gb": values["link_gb"]}
    if values["tflops"]:
        given |= {"tflops_16_bit": values["tflops"], "tflops_32_bit": values["tflops"]}
    request = _request(values, plugins, machine.count, "single" if machine.count == 1 else "ddp")
    require_known(request.batch_size, machine)
    try_factories_of(request, values, machine.count)
    advice = advise(
        request, machine, plugins.strategies, speeds=Speeds(**given), device=values["device"], tell=deliver.notice
    )
    form = values["output_format"]
    deliver.write((advice_json if form == "json" else advice_text).render(advice), form, values["output"])
    return int(advice.best is None)


def _request(values: dict[str, Any], plugins: Plugins, ranks: int, strategy: str, **more: Any) -> TrainingRequest:
    from distdoctor.workloads.request import make_request

    given = training_values(values)
    given.setdefault("batch_size", values["batch"] or PER_DEVICE * ranks)
    name = values["strategy"] or strategy
    if name not in plugins.strategies:
        raise WrongUse(f"there is no strategy {name}", way_out=f"There are {', '.join(plugins.strategies)}.")
    return make_request(
        plugins.strategies[name],
        {**given, **more},
        models=plugins.models.values(),
        sources=plugins.data.values(),
        backend=values["backend"],
    )


def _try(values: dict[str, Any], plugins: Plugins) -> int:
    from distdoctor.cli import deliver
    from distdoctor.planning import trial
    from distdoctor.planning.memory_remedies import cure_named, tried

    cure_named(values["remedy"])
    ranks = values["nproc"] or 2
    request = _request(values, plugins, ranks, "single" if ranks == 1 else "ddp")
    without, cured = tried(values["remedy"], request, ranks, plugins.strategies)
    try_factories_of(cured, values, ranks)
    found = trial.try_remedy(values["remedy"], without, cured, ranks, device=_device(values), tell=deliver.notice)
    form = values["output_format"]
    deliver.write(trial.to_json(found) if form == "json" else trial.render(found), form, values["output"])
    return 0 if found.verified else 1


def _find_batch_size(values: dict[str, Any], plugins: Plugins, machine: Machine) -> int:
    from distdoctor.cli import deliver
    from distdoctor.planning import largest_batch

    ranks = values["nproc"] or machine.count
    request = _request(values, plugins, ranks, "single" if ranks == 1 else "ddp")
    try_factories_of(request, values, ranks)
    found = largest_batch.find(request, ranks, machine.usable, device=_device(values), tell=deliver.notice)
    form = values["output_format"]
    deliver.write(
        largest_batch.to_json(found) if form == "json" else largest_batch.render(found), form, values["output"]
    )
    return int(found.largest == 0)


def _device(values: dict[str, Any]) -> str:
    """Where a training of this call really runs."""
    from distdoctor.launch.devices import visible_gpus

    return "cpu" if values["backend"] == "gloo" or not visible_gpus() else "cuda"
