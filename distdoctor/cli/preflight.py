"""`distdoctor preflight`: does this machine carry the job, asked before it is started."""

from __future__ import annotations

import platform
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import rich_click

from distdoctor.cli.options import no_plugin
from distdoctor.errors import WrongUse

if TYPE_CHECKING:
    from distdoctor.recording.preflight import Preflight

PORT = 29500  # torchrun's own default


@click.command(cls=rich_click.RichCommand)
@click.option("--nproc", type=click.IntRange(1), default=2, show_default=True, help="Ranks on this host.")
@click.option("--nnodes", type=click.IntRange(1), default=1, show_default=True, help="Hosts; run it on each of them.")
@click.option("--node-rank", type=click.IntRange(0), default=0, show_default=True, help="The number of this host.")
@click.option(
    "--endpoint",
    metavar="HOST:PORT",
    help="Where the ranks will meet, on host 0; required with --nnodes, otherwise only checked.",
)
@click.option("--backend", type=click.Choice(["gloo", "nccl"]), help="[default: nccl with a GPU, else gloo]")
@click.option("--workers", type=click.IntRange(0), default=0, show_default=True, help="Loader workers of each rank.")
@click.option(
    "--timeout", type=click.FloatRange(1), default=20.0, show_default=True, help="Seconds to wait for all ranks."
)
@click.option("--output-format", type=click.Choice(["text", "json"]), default="text", help="How to print it.")
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Write it there.")
@no_plugin
@click.pass_context
def preflight(ctx: click.Context, /, **values: Any) -> None:
    """Can ranks meet and reduce here, with the same versions, and enough cores and shared memory?

    Starts empty ranks that join a group, all_reduce known sums of three sizes, compare versions, code and clocks, and
    leave. What NCCL's own diagnostics find (2.31 and newer: NCCL_RUN_DIAGNOSTICS=1, NCCL_RUN_RAS_DIAGNOSTICS=1) is read
    along. With several hosts, run the same command on each, as with torchrun: `distdoctor preflight --nproc 8 --nnodes
    2 --node-rank 0 --endpoint node0:29500`. Nothing is trained. Exit codes: 0 nothing found, 1 findings.
    """
    from distdoctor.cli import deliver
    from distdoctor.cli.settings import load, load_plugins
    from distdoctor.diagnosis.examination import examine
    from distdoctor.recording.recording import Job, Recording
    from distdoctor.report.preflight_table import render, table

    settings = load({"no_plugin": values["no_plugin"]})
    plugins = load_plugins(settings)
    found = _measured(values)
    recording = Recording(Job(("preflight",)), {}, frozenset(), preflight=found)
    checks = [check for check in plugins.checks.values() if check.area == "environment"]
    diagnosis = examine(recording, checks, plugins.remedies)
    report = deliver.rendered(
        diagnosis, values["output_format"], plugins, width=deliver.width_of(sys.stdout, values["output"])
    )
    if values["output_format"] == "text":
        report = report + table(found) if diagnosis.findings else render(found)
    deliver.write(report, values["output_format"], values["output"])
    ctx.exit(int(bool(diagnosis.findings)))


def _measured(values: dict[str, Any]) -> Preflight:
    from dataclasses import replace

    from distdoctor.launch.devices import visible_gpus
    from distdoctor.launch.preflight import machine, trial
    from distdoctor.recording.nccl_remark import remark_in
    from distdoctor.recording.preflight import Preflight, TrialRank

    ranks, hosts = values["nproc"], values["nnodes"]
    endpoint = _endpoint(values["endpoint"], hosts, values["node_rank"])
    gpus = visible_gpus()
    backend = values["backend"] or ("nccl" if gpus else "gloo")
    here = replace(
        machine.look(ranks, values["workers"], endpoint, hosts_it=values["node_rank"] == 0),
        devices=gpus if backend == "nccl" else None,
    )
    found = Preflight(here, ranks * hosts, backend)
    first = ranks * values["node_rank"]
    if here.lacks_devices or here.unresolved or here.holder or (here.unreachable and values["node_rank"] == 0):
        alone = (TrialRank(first + rank, platform.node(), trouble="was not started") for rank in range(ranks))
        return replace(found, ranks={one.rank: one for one in alone})
    meet = "{}:{}".format(*endpoint) if endpoint and hosts > 1 else ""
    joined, printed = trial.run(ranks, first, ranks * hosts, backend, meet, values["timeout"])
    sys.stderr.write(printed)
    remarks = tuple(one for line in printed.splitlines() if (one := remark_in(line)))
    if all(not one.trouble for one in joined.values()):
        found = replace(found, machine=replace(here, unreachable=""))  # host 0 was only later than this one
    return replace(found, ranks=joined, remarks=remarks)


def _endpoint(given: str | None, hosts: int, node_rank: int) -> tuple[str, int] | None:
    if given is None:
        if hosts > 1:
            raise WrongUse(
                f"{hosts} hosts have to meet somewhere", way_out="Add --endpoint HOST:PORT, the same on every host."
            )
        return None
    if node_rank >= hosts:
        raise WrongUse(f"--node-rank {node_rank} with {hosts} hosts", way_out=f"Ranks of hosts are 0 to {hosts - 1}.")
    host, _, port = given.rpartition(":") if ":" in given else (given, "", str(PORT))
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise WrongUse(f"--endpoint {given} is no HOST:PORT", way_out="For example --endpoint node0:29500.")
    return host.strip("[]"), int(port)
