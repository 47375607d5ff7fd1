"""`distdoctor check-memory`: launch a job and look at what its memory is used for, module by module and phase by phase."""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING, Any

import click

from distdoctor.cli.check_grads import CheckGradsCommand
from distdoctor.cli.run import ARGV, COMMAND, LIST_DRILLS, run

if TYPE_CHECKING:
    from distdoctor.recording.recording import Recording

# glibc: a block of a MiB or more gets pages of its own and gives them back at once, so that resident memory is what is in use.
ACCOUNTING = {"MALLOC_MMAP_THRESHOLD_": "1048576", "MALLOC_TRIM_THRESHOLD_": "0"}
_UNITS = {
    "": 1,
    "k": 1000,
    "m": 1000**2,
    "g": 1000**3,
    "t": 1000**4,
    "ki": 1 << 10,
    "mi": 1 << 20,
    "gi": 1 << 30,
    "ti": 1 << 40,
}


class Bytes(click.ParamType[int]):
    """`80GiB`, `24GB`, `512MiB`, or a number of bytes."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        found = re.fullmatch(r"\s*([\d.]+)\s*([kmgt]i?)?b?\s*", str(value), re.IGNORECASE)
        if found is None:
            self.fail(f"{value!r} is no size; write 80GiB, 24GB or 512MiB", param, ctx)
        try:
            return int(float(found[1]) * _UNITS[(found[2] or "").lower()])
        except ValueError:
            self.fail(f"{found[1]!r} is no number", param, ctx)


@click.command(
    "check-memory",
    cls=CheckGradsCommand,
    params=[
        *(parameter for parameter in run.params if not isinstance(parameter, click.Argument)),
        click.Option(
            ["--budget"], type=Bytes(), help="Check that the peak of every rank stays within this budget, e.g. 80GiB."
        ),
        *(parameter for parameter in run.params if isinstance(parameter, click.Argument)),
    ],
    panels=run.panels,
    context_settings=run.context_settings,
)
@click.pass_context
def check_memory(ctx: click.Context, /, budget: int | None, **values: Any) -> None:
    """Where did the memory go? The peak by category and rank, the modules that keep most for backward, and what grows.

    By default this trains the reference workload with DistributedDataParallel on two ranks; with --strategy, another strategy;
    with a script or module, that one, unmodified. The first line is the answer; with --budget it tells whether the measured peak
    fits, and what would make it fit (exit code 1 if it does not). Parameters, gradients, optimizer state and buffers are
    counted storage by storage, activations as the graph holds them, the peak of each phase by the kernel's own mark. The first
    six steps are sampled in depth, then one in 32: these take longer; results stay bit-identical.
    """
    if LIST_DRILLS in ctx.meta:
        from distdoctor.cli.fire_drills import show_drills

        show_drills(ctx.meta[LIST_DRILLS])
        return
    from distdoctor.cli.run_job import execute
    from distdoctor.recording.trace.probe_settings import ProbeSettings

    probe = ProbeSettings(deep=frozenset({"memory"}), budget_bytes=budget or 0)
    for name, value in ACCOUNTING.items():
        os.environ.setdefault(name, value)
    verdicts: list[bool | None] = []

    def show(recording: Recording) -> None:
        verdicts.append(_show_table(recording, values, budget or 0))

    code = execute(ctx.meta[ARGV], values, ctx.meta[COMMAND], probe=probe, answer=show)
    ctx.exit(code or (1 if False in verdicts else 0))


def _show_table(recording: Recording, values: dict[str, Any], budget: int) -> bool | None:
    """Show the verdict; whether the peak is within the budget, None without one."""
    from distdoctor.cli import deliver
    from distdoctor.cli.settings import load, load_plugins
    from distdoctor.launch.post_mortem import diagnose
    from distdoctor.report import memory_table

    settings = load({"no_plugin": values["no_plugin"], "ignore": values["ignore"]})
    found = load_plugins(settings)
    checks = {code: check for code, check in found.checks.items() if check.area == "memory"}
    findings = diagnose(recording, checks, found.remedies, frozenset(settings.ignore)).findings
    plain = values["output_format"] in (None, "text")
    deliver.show(memory_table.render(recording, budget, findings) + "\n", sys.stdout if plain else sys.stderr)
    return memory_table.fits(recording, budget) if budget else None
