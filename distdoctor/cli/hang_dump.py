"""`distdoctor hang-dump`: look at a job that already runs, however it was started, and say why it stands still."""

from __future__ import annotations

import importlib
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import rich_click

from distdoctor.cli.options import reporting

if TYPE_CHECKING:
    from distdoctor.attach.processes import FoundJob, HostProcesses
    from distdoctor.attach.snapshot import Manner
    from distdoctor.cli.looked_at import LookedAt
    from distdoctor.cli.settings import Settings
    from distdoctor.diagnosis.diagnosis import Diagnosis
    from distdoctor.plugins import Plugins
    from distdoctor.recording.recording import Job, Recording


@click.command("hang-dump", cls=rich_click.RichCommand)
@click.option(
    "--pid", type=click.IntRange(1), help="The job of this rank, worker or launcher; or this Python process alone."
)
@click.option(
    "--run",
    "run",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="FOLDER",
    help="The job that records into this run folder.",
)
@click.option(
    "--samples", type=click.IntRange(1, 100), default=2, show_default=True, help="How many stack snapshots to take."
)
@click.option(
    "--interval", type=click.FloatRange(0.0), default=0.5, show_default=True, help="Seconds between two snapshots."
)
@click.option(
    "--patience",
    type=click.FloatRange(0.0),
    default=10.0,
    show_default=True,
    help="Seconds without progress after which a rank is called stuck.",
)
@click.option(
    "--native",
    is_flag=True,
    help="C++ frames too; with pystack (extra `native`) C++ threads. Freezes each process for up to 1.5 s.",
)
@click.option(
    "--locals",
    "user_locals",
    is_flag=True,
    help="With --json: include the local variables of every frame, also your own.",
)
@click.option("--json", "as_json", is_flag=True, help="Short for --output-format json, with every process and frame.")
@click.option(
    "--on",
    "target",
    metavar="HOSTS",
    help="Examine these hosts at the same time: ssh:HOST,HOST, @HOSTFILE, srun:JOBID, kubectl:[NAMESPACE:]SELECTOR.",
)
@click.option(
    "--each-within",
    type=click.FloatRange(0.1),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="With --on: how long each host may take.",
)
@click.option(
    "--remote-command",
    default="distdoctor",
    show_default=True,
    metavar="WORDS",
    help="With --on: the command that runs distdoctor there, for example '/opt/venv/bin/distdoctor'.",
)
@click.option("--keep/--no-keep", default=True, help="Whether to write the snapshots into the run folder.")
@reporting
@click.pass_context
def hang_dump(
    ctx: click.Context, /, pid: int | None, run: Path | None, target: str | None, keep: bool, **values: Any
) -> None:
    """Diagnose why a running job hangs: which rank is stuck, on which line, and doing what.

    Without arguments every distributed job on this host is examined: ranks of torchrun, accelerate, mpirun, srun and mp.spawn
    with their DataLoader workers. Nothing is stopped, paused or changed. The snapshots are kept in the job's run folder,
    otherwise in .distdoctor/runs/ here, so that `distdoctor report` and `examine` give the same verdict when the job is gone.

    With --on each host of the job examines its own ranks, and there is one verdict. distdoctor must be installed there and
    writes nothing there. Exit codes: 0 nothing stuck, 3 a hang was diagnosed, 4 no such job or process, 5 processes or hosts
    could not be read.
    """
    from concurrent.futures import ThreadPoolExecutor
    from dataclasses import replace

    from distdoctor.attach.snapshot import Manner
    from distdoctor.cli import deliver
    from distdoctor.cli.settings import load, load_plugins

    begun = threading.Event()
    how = (values.pop(name) for name in ("samples", "interval", "patience", "native", "user_locals"))
    manner = replace(Manner(*how), begins=begun.set)
    within, called = values.pop("each_within"), values.pop("remote_command")
    output, baseline = values.pop("output"), values.pop("baseline")
    if values.pop("as_json"):
        values["output_format"] = "json"
    values["output_format"] = deliver.form_by_suffix(values["output_format"], output)
    settings = load(values)
    if manner.native:
        deliver.notice(_pause())
    if target is not None:
        _refuse_with_on(pid, run)
    # What the verdict needs is imported while py-spy looks, and in the pause between two samples.
    with ThreadPoolExecutor(1) as aside:
        looking = aside.submit(_look, pid, run, (target, called, within) if target is not None else None, manner)
        looking.add_done_callback(lambda _: begun.set())
        begun.wait(timeout=None if target is None else 0.0)
        importlib.import_module("distdoctor.attach.attached")
        plugins = load_plugins(settings)
        deliver.require_format(settings.output_format, plugins, output if values["output_format"] is None else None)
        importlib.import_module("distdoctor.launch.post_mortem")
        importlib.import_module(
            "distdoctor.report.json_report" if settings.output_format == "json" else "distdoctor.report.text"
        )
    jobs, recordings = looking.result()
    seen = _examined(recordings, settings, plugins)
    worst = _worst_first(jobs, seen, settings)
    kept = [_keep(jobs[number], *seen[number], latest=number == worst[0]) for number in worst if keep]
    seen = [(deliver.without_accepted(diagnosis, baseline), recording) for diagnosis, recording in seen]
    deliver.write(_rendered(jobs, seen, settings, plugins), settings.output_format, output)
    for folder in filter(None, kept):
        deliver.remark(f"what was seen is kept: distdoctor report {_as_path(folder)}")
    ctx.exit(max(_exit_codes(jobs, seen, settings), key=_URGENCY.index))


def _look(
    pid: int | None, run: Path | None, elsewhere: tuple[str, str, float] | None, manner: Manner
) -> tuple[Sequence[LookedAt], Sequence[Recording]]:
    """The jobs, and what is known about each of them. `elsewhere`: the hosts, the command to call there, its limit in seconds."""
    from distdoctor.attach.processes import HostProcesses
    from distdoctor.attach.snapshot import look_at

    if elsewhere is not None:
        from distdoctor.cli import hang_dump_on

        target, called, within = elsewhere
        return hang_dump_on.look(target, called, manner, within)
    host = HostProcesses.now()
    here = _jobs(pid, run, host)
    looks = look_at(here, host, manner)
    from distdoctor.attach.attached import recording_of  # not before it has looked: see `hang_dump`
    from distdoctor.cli.looked_at import LookedAt

    recordings = [recording_of(job, stacks, host) for job, stacks in zip(here, looks, strict=True)]
    return [LookedAt.here(job, one) for job, one in zip(here, recordings, strict=True)], recordings


def _refuse_with_on(pid: int | None, run: Path | None) -> None:
    from distdoctor.errors import WrongUse

    if pid is not None or run is not None:
        name = "--pid" if pid is not None else "--run"
        raise WrongUse(f"{name} says where to look on one host", way_out=f"Leave {name} or --on out.")


def _pause() -> str:
    """What `--native` does to the processes, said before it does so."""
    from distdoctor.attach import pystack

    if pystack.program() is None:
        return (
            "--native freezes each process for about 0.5 s while its C++ frames are read; "
            "pip install 'distdoctor[native]' shows the threads that run no Python, too"
        )
    return "--native freezes each process twice, for about 0.5 s and 1 s, while its C++ frames and threads are read"


_OURS = "hang-dump-"  # how the folders of jobs are called that were not recorded


# The exit code of several jobs is that of the worst.
_URGENCY = (0, 1, 5, 3)


def _jobs(pid: int | None, run: Path | None, host: HostProcesses) -> list[FoundJob]:
    from distdoctor.attach.jobs import all_jobs, job_of, job_of_run

    if pid is not None:
        return [job_of(pid, host)]
    if run is not None:
        return [job_of_run(run, host)]
    return all_jobs(host)


def _examined(
    recordings: Sequence[Recording], settings: Settings, plugins: Plugins
) -> list[tuple[Diagnosis, Recording]]:
    from distdoctor.launch.post_mortem import diagnose

    ignored = frozenset(settings.ignore)
    return [(diagnose(recording, plugins.checks, plugins.remedies, ignored), recording) for recording in recordings]


def _keep(job: LookedAt, diagnosis: Diagnosis, recording: Recording, *, latest: bool) -> Path | None:
    """Write the stacks and what was said of them where reports are read from: the processes will be gone by then. The folder;
    None where nothing is kept, as of a job whose ranks have not started.

    `latest`: commands without a path are about this job from now on, unless a run that they are about is still recorded here.
    """
    from distdoctor.cli import deliver
    from distdoctor.diagnosis.said_live import SaidLive
    from distdoctor.errors import DoctorError
    from distdoctor.launch.new_run_folder import make_shared_folder
    from distdoctor.recording.files import write_whole
    from distdoctor.recording.seen_live import BY_HANG_DUMP, SeenLive

    hung = bool(diagnosis.stalled)
    examined = diagnosis.examined if hung else ()
    said = SaidLive(
        stood=diagnosis.findings, leads=hung, hung=hung, examined=examined, remedies=dict(diagnosis.remedies)
    )
    about = recording.job
    seen = SeenLive(BY_HANG_DUMP, about.attempt, about.read_wall_ns, recording.stacks, said.as_values())
    try:
        folder = job.run_folder
        if folder is None and not (recording.stacks and recording.stacks.ranks):
            return None
        if folder is None:
            folder = make_shared_folder(f"{_OURS}{job.number}", latest=latest and not _is_recording())
            _describe(folder, job, about)
        write_whole(folder / seen.name, seen.to_json())
    except (OSError, DoctorError) as trouble:
        deliver.notice(f"what was seen is not kept: {trouble}")
        return None
    return folder


def _is_recording() -> bool:
    """Whether the latest run of this working directory is one that still goes on: `watch` and `show` are about that."""
    from distdoctor.errors import DoctorError
    from distdoctor.launch.post_mortem import find_run, with_end
    from distdoctor.recording.open import open_run

    try:
        folder = find_run(None)
        return not folder.name.startswith(_OURS) and with_end(open_run(folder)).job.running
    except (OSError, DoctorError):
        return False


def _as_path(folder: Path) -> str:
    """By its name where that is enough: in the runs of this working directory."""
    from distdoctor.recording.open import RUNS

    return folder.name if folder.parent == Path.cwd() / RUNS else os.path.relpath(folder)


def _describe(folder: Path, job: LookedAt, about: Job) -> None:
    """Write what the job is. Of one of this machine also whose end is its own, so that it is not said to run for ever."""
    from distdoctor.recording.files import write_whole
    from distdoctor.recording.recording import Attempt
    from distdoctor.recording.trace.host_file import PATTERN, HostFile
    from distdoctor.recording.trace.run_folder import JOB_FILE, job_to_json

    if job.launched_by is None:
        write_whole(folder / JOB_FILE, job_to_json(about))
        return
    start = Attempt(about.attempt, about.world_size, tuple(range(about.world_size)))
    host = HostFile(
        job.launched_by, about.argv, about.launcher, about.strategy, hosts=about.hosts, starts={about.attempt: start}
    )
    for older in folder.glob(PATTERN):  # of a process that had this pid before
        older.unlink()
    write_whole(folder / host.name, host.to_json())


def _exit_codes(jobs: Sequence[LookedAt], seen: Sequence[tuple[Diagnosis, Recording]], settings: Settings) -> list[int]:
    return [_exit_code(job, diagnosis, settings) for job, (diagnosis, _) in zip(jobs, seen, strict=True)]


def _worst_first(
    jobs: Sequence[LookedAt], seen: Sequence[tuple[Diagnosis, Recording]], settings: Settings
) -> list[int]:
    """The numbers of the jobs, the one that matters most first."""
    codes = _exit_codes(jobs, seen, settings)
    return sorted(range(len(jobs)), key=lambda number: -_URGENCY.index(codes[number]))


def _exit_code(job: LookedAt, diagnosis: Diagnosis, settings: Settings) -> int:
    from distdoctor.cli import deliver
    from distdoctor.diagnosis.finding import ERROR

    if diagnosis.stalled:
        return 3
    if any(finding.area == "environment" for finding in diagnosis.at_least(ERROR)):  # it kept us from looking
        return 5
    code = deliver.exit_code(diagnosis, settings, hung=False, job_failed=False)
    cannot_tell = any(one.failed for one in diagnosis.not_examined) or (job.over_hosts and not diagnosis.is_whole)
    return code or (5 if cannot_tell else 0)


def _rendered(
    jobs: Sequence[LookedAt], seen: Sequence[tuple[Diagnosis, Recording]], settings: Settings, plugins: Plugins
) -> str:
    from distdoctor.cli import deliver

    if settings.output_format == "json":
        return _json(seen)
    worst = _worst_first(jobs, seen, settings)
    if settings.output_format != "text":
        return deliver.rendered(seen[worst[0]][0], settings.output_format, plugins)
    return "\n".join(_text(jobs[number], *seen[number], of=len(jobs)) for number in worst)


def _text(job: LookedAt, diagnosis: Diagnosis, recording: Recording, *, of: int) -> str:
    """The answer, the job, the findings, the stacks."""
    from distdoctor.cli import deliver
    from distdoctor.report import first_line, stack_tree
    from distdoctor.report.text import render

    base = os.getcwd()
    lines = [first_line.answer(diagnosis, recording, base, over_hosts=job.over_hosts), job.line(of=of)]
    if diagnosis.findings:
        lines += ["", *render(diagnosis, base=base, width=deliver.width_of(sys.stdout)).rstrip("\n").split("\n")]
    tree = stack_tree.render(recording.stacks, base) if recording.stacks else []
    if tree:
        lines += ["", "stacks", *tree]
    threads = stack_tree.cpp_threads(recording.stacks) if recording.stacks else []
    if threads:
        lines += ["", "threads without Python", *threads]
    if recording.backend:
        from distdoctor.recording.flight.backend_state import told

        lines += ["", "torch's flight recorder", *(f"  {line}" for line in told(recording.backend))]
    if recording.ras is not None:
        lines += ["", "NCCL's RAS", *(f"  {line}" for line in recording.ras.lines())]
    return "\n".join(lines) + "\n"


def _json(seen: Sequence[tuple[Diagnosis, Recording]]) -> str:
    """The report of the worst job, as any other report, with `stacks`, the host `bundle` by which `distdoctor examine` puts the
    looks of several hosts together, and, of ranks that distdoctor started, `flight_recorder`.

    Further jobs are in the same shape under `other_jobs`.
    """
    import json

    import msgspec

    from distdoctor.recording.bundle import IN_JSON, in_json
    from distdoctor.report.json_report import report_of

    documents = []
    for diagnosis, recording in sorted(seen, key=lambda one: -len(one[0].findings)):
        document = msgspec.to_builtins(report_of(diagnosis), enc_hook=str)
        document["nccl_ras"] = msgspec.to_builtins(recording.ras, str_keys=True) if recording.ras is not None else None
        document[IN_JSON] = in_json(recording)
        document["flight_recorder"] = msgspec.to_builtins([*recording.backend.values()])
        documents.append(document)
    return json.dumps({**documents[0], "other_jobs": documents[1:]}, indent=2, default=str) + "\n"
