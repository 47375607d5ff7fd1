"""What `distdoctor run` does once its command line is understood."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from distdoctor.cli import deliver, fire_drills
from distdoctor.cli.deliver import notice, remark
from distdoctor.cli.live_view import LiveView
from distdoctor.cli.loudness import quiet
from distdoctor.cli.notifying import Notifier, Tell
from distdoctor.cli.references import try_factories_of
from distdoctor.cli.settings import Settings, load, load_plugins
from distdoctor.cli.source_hints import source_hints
from distdoctor.cli.torchrun_options import torchrun_arguments
from distdoctor.cli.training_options import training_values
from distdoctor.errors import DoctorError, WrongUse
from distdoctor.launch import devices
from distdoctor.launch.factories import try_loaders
from distdoctor.launch.job import RunningJob
from distdoctor.launch.new_run_folder import make_run_folder, make_shared_folder
from distdoctor.launch.other_launcher import nodes_of
from distdoctor.launch.run_options import Launch, Outcome, RunOptions
from distdoctor.launch.signals_heard import finishing
from distdoctor.launch.step import SchedulerStep, step_of
from distdoctor.launch.torchrun_arguments import parse
from distdoctor.recording.files import write_whole
from distdoctor.recording.recording import Job, Recording, SourceLine
from distdoctor.recording.trace.probe_settings import ProbeSettings

if TYPE_CHECKING:
    from distdoctor.diagnosis.diagnosis import Diagnosis
    from distdoctor.diagnosis.finding import Finding
    from distdoctor.plugins import Plugins

STREAMS = Recording(Job(), {}).streams  # everything that the probe can record
_shown_live: list[Finding] = []  # in full, on stderr: whoever reads both streams gets the same only once
NAN = "nan"  # in `--stop-on nan`: whatever is not finite


def execute(
    argv: Sequence[str],
    values: Mapping[str, Any],
    command: Sequence[str] | None,
    afterwards: Callable[[Path], None] = lambda folder: None,
    probe: ProbeSettings | None = None,
    answer: Callable[[Recording], None] = lambda recording: None,
) -> int:
    """Launch, watch, report; the exit code. `afterwards` is called with the run folder when every rank has ended, `answer` with
    the recording before the report is made of it.

    `probe`: how to record, beside what the command line says of it.
    """
    values = {**values, "output_format": deliver.form_by_suffix(values["output_format"], values["output"])}
    settings = load(
        {
            name: values[name]
            for name in ("ignore", "fail_on", "no_plugin", "output_format", "on_hang", "hang_after", "notify")
        }
    )
    plugins = load_plugins(settings)
    _require_what_the_report_needs(settings, plugins, values)
    stop_on = _stop_on(values["stop_on"], plugins)
    wants = _Wanted.of(argv, values, command, plugins)
    if values["off"] or os.environ.get("DISTDOCTOR") == "0":
        _plain_launcher(wants)
    recorded = _recorded(probe or ProbeSettings(), values["streams"], wants.deep)
    step = step_of(os.environ) if wants.command or wants.nodes > 1 else None
    folder = _run_folder(wants, values["run_dir"], step)
    launch = wants.launch(folder)
    stdout = _stdout_for_the_report(settings, values["output"])
    command_line = _CommandLine(argv, values, command, settings, plugins)
    launcher = None if step is None or not wants.command else step  # the step's tasks are this job's hosts
    orders = RunOptions(
        folder,
        on_hang=settings.on_hang or ("abort" if command_line.try_fix else _usual_on_hang()),
        hang_after=settings.hang_after,
        probe=recorded,
        ignored=frozenset(settings.ignore),
        tell=_but_accepted(command_line.notifier.beside(_tell, folder), values["baseline"]),
        notice=notice,
        closer=lambda: _with_stacks(folder),
        lines=lambda: _lines(folder),
        stop_on=stop_on,
        afterwards=lambda: afterwards(folder),
        hosts=launcher.tasks if launcher is not None else wants.nodes,
        task=launcher.task if launcher is not None else -1,
    )
    with stdout as report_to, LiveView.of(folder) or contextlib.nullcontext() as view:

        def report(outcome: Outcome) -> int:
            if view is not None:
                view.close()
            answer(outcome.recording)
            return command_line.report(outcome, wants.nodes, folder, report_to)

        job = RunningJob(launch, replace(orders, leave=lambda outcome: _leave(report(outcome))), plugins)
        return _run_and_report(job, report)


def _run_and_report(job: RunningJob, report: Callable[[Outcome], int]) -> int:
    """The exit code. Ctrl-C while the report is made ends the report: the job is over, and has ended as it has."""
    try:
        return report(job.run())
    except KeyboardInterrupt:
        if job.exit_code is None:
            raise
        notice("the report was interrupted; `distdoctor show` gives it")
        return int(job.exit_code != 0)


class _CommandLine:
    """What was asked for, from which its report is made when the job has ended."""

    def __init__(
        self,
        argv: Sequence[str],
        values: Mapping[str, Any],
        command: Sequence[str] | None,
        settings: Settings,
        plugins: Plugins,
    ) -> None:
        self.argv, self.values, self.command = argv, values, command
        self.settings, self.plugins = settings, plugins
        self.try_fix = bool(values.get("try_fix"))
        self.notifier = Notifier.of(settings)
        self._began = time.time_ns(), time.monotonic()

    def report(self, outcome: Outcome, nodes: int, folder: Path, report_to: TextIO) -> int:
        """The exit code, once the report is written."""
        diagnosis = outcome.diagnosis
        if self.try_fix:
            from distdoctor.cli.try_fix import first_run, with_fix_tried

            at, clock = self._began
            first = first_run(self.argv, self.values, self.command, nodes, (at, time.monotonic() - clock))
            diagnosis = with_fix_tried(outcome, first, self.plugins, self.settings.ignore)
        diagnosis = deliver.without_accepted(diagnosis, self.values["baseline"])
        outcome = replace(outcome, diagnosis=diagnosis)
        with finishing():
            code = _report_or_say(outcome, self.settings, self.plugins, folder, self.values["output"], report_to)
            self.notifier.at_the_end(diagnosis, folder.name, interrupted=bool(outcome.interrupted))
        return code


def _require_what_the_report_needs(settings: Settings, plugins: Plugins, values: Mapping[str, Any]) -> None:
    """WrongUse now, rather than after hours of training."""
    unnamed = values["output"] if values["output_format"] is None else None
    deliver.require_format(settings.output_format, plugins, unnamed)
    deliver.require_folder(values["output"])
    deliver.accepted_by(values["baseline"])
    Notifier.of(settings).say_what_is_missing()


def _leave(code: int) -> NoReturn:
    """End this process although its main thread stands in a call that does not come back."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _run_folder(wants: _Wanted, asked: Path | None, step: SchedulerStep | None) -> Path:
    """Where to record. A script is launched even where no folder can be made; then it runs as without distdoctor.

    The launchers of one `step` record into one folder.
    """
    try:
        if step is not None and asked is None:
            return make_shared_folder(step.name)
        return make_run_folder(wants.name, asked, shared=step is not None or wants.nodes > 1, notice=notice)
    except WrongUse as trouble:
        if asked is not None or wants.request is not None:
            raise
        notice(f"{trouble}: the job is not recorded")
        _plain_launcher(wants)


class _Wanted:
    """What the command line asks for, checked, before anything is made."""

    def __init__(self, argv: Sequence[str], plugins: Plugins) -> None:
        self.argv = tuple(argv)
        self.plugins = plugins
        self.name = "run"
        self.nodes = 1
        self.command: tuple[str, ...] = ()
        self.options: list[str] = []
        self.script: list[str] = []
        self.request: Any = None
        self.deep: frozenset[str] = frozenset()  # streams

    @classmethod
    def of(
        cls, argv: Sequence[str], values: Mapping[str, Any], command: Sequence[str] | None, plugins: Plugins
    ) -> _Wanted:
        wanted = cls(argv, plugins)
        wanted.options = torchrun_arguments(values)
        wanted.script = list(values["script"])
        if values["strategy"]:
            wanted._strategy(values)
        else:
            wanted._refuse_training_options(values)
            if command is not None:
                wanted._launcher(command)
            else:
                wanted._script(values.get("loader"))
        return wanted

    def launch(self, folder: Path) -> Launch:
        """What to start, with the request of a reference training written into the run folder."""
        if self.command:
            return Launch(self.argv, command=self.command)
        if self.request is None:
            return Launch(self.argv, options=tuple(self.options), script=tuple(self.script))
        path = folder / "request.json"
        write_whole(path, self.request.to_json())
        options = (*self.options, "--module")
        return Launch(self.argv, options, ("distdoctor.workloads.train", str(path)), strategy=self.request.strategy)

    def _strategy(self, values: Mapping[str, Any]) -> None:
        from distdoctor.workloads.request import make_request, validate

        if self.script:
            raise WrongUse(
                f"both --strategy {values['strategy']} and {self.script[0]} are asked for",
                way_out="--strategy trains the reference workload; leave it out to launch your script.",
            )
        backend = values["backend"]
        local = self._ranks_here()
        devices.require_backend(backend)
        devices.require_devices(local, backend)
        ranks = local * self.nodes
        strategy = self.plugins.strategies[values["strategy"]]
        drills = fire_drills.chosen(values["drills"], strategy.name, self.plugins.drills, ranks)
        self.request = make_request(
            strategy,
            {**fire_drills.settings_of(drills), **training_values(values)},
            models=self.plugins.models.values(),
            sources=self.plugins.data.values(),
            drills=[drill.plant for drill in drills],
            backend=backend,
        )
        validate(self.request, ranks)
        try_factories_of(self.request, values, ranks)
        self.deep = fire_drills.deep_streams(drills)
        self.name = "-".join([strategy.name, *(drill.slug for drill in drills)])
        if backend is None and not devices.visible_gpus():
            notice("no GPU is visible: the ranks train on the CPU with gloo")

    def _script(self, loader: str | None) -> None:
        """`loader`: the user's function that the script calls for its loaders."""
        if not self.script:
            raise WrongUse(
                "nothing to run",
                way_out="Name a script, -m a module, --strategy a reference training, or another launcher after `--`.",
            )
        args = parse(self.options, self.script)
        if not (args.module or args.no_python) and not os.path.exists(args.training_script):
            raise WrongUse(
                f"there is no script {args.training_script}",
                way_out="A module needs -m, a program --no-python, another launcher `--` before it.",
            )
        self.name = Path(args.training_script).stem if not args.module else args.training_script
        local = self._ranks_here()
        if loader:
            try_loaders(loader, local * self.nodes)
        odd = devices.notice(local)
        if odd:
            notice(odd)

    def _launcher(self, command: Sequence[str]) -> None:
        if self.script or self.options:
            raise WrongUse(
                f"{' '.join(self.options) or self.script[0]} stands before `--`, which starts another launcher",
                way_out="Give that launcher its own options, after its name.",
            )
        if not command:
            raise WrongUse("no launcher follows `--`", way_out="For example `distdoctor run -- torchrun train.py`.")
        if shutil.which(command[0]) is None:
            raise WrongUse(
                f"{command[0]} cannot be started: there is no such program",
                way_out="What follows `--` is a whole command line, for example `distdoctor run -- torchrun train.py`.",
            )
        self.command = tuple(command)
        self.name = Path(command[0]).name
        self.nodes = nodes_of(command)

    def _ranks_here(self) -> int:
        """How many ranks this node will have, in torch's own reading of --nproc-per-node."""
        from torch.distributed.run import determine_local_world_size, parse_min_max_nnodes

        args = parse(self.options, self.script or ["none"])
        try:
            self.nodes = int(parse_min_max_nnodes(args.nnodes)[1])
            ranks = int(determine_local_world_size(args.nproc_per_node))
        except (ValueError, RuntimeError) as trouble:
            raise WrongUse(
                str(trouble), way_out="--nproc takes a number, auto, cpu or gpu; --nnodes N or MIN:MAX."
            ) from None
        if min(ranks, self.nodes) < 1:
            raise WrongUse(
                f"--nproc {args.nproc_per_node} on {self.nodes} node(s) starts no rank",
                way_out="Give --nproc and --nnodes at least 1.",
            )
        return ranks

    def _refuse_training_options(self, values: Mapping[str, Any]) -> None:
        given = [f"--{name.replace('_', '-')}" for name in training_values(values)]
        given += [flag for flag, name in (("--backend", "backend"), ("--fire-drill", "drills")) if values[name]]
        if given:
            raise WrongUse(
                f"{', '.join(given)} without --strategy: only the reference training knows it",
                way_out="Add --strategy NAME, or put options of your script after the script.",
            )


def _plain_launcher(wanted: _Wanted) -> NoReturn:
    """Become the launcher that would have been used without distdoctor."""
    os.environ["DISTDOCTOR"] = "0"
    if wanted.command:
        try:
            os.execvp(wanted.command[0], wanted.command)  # noqa: S606
        except OSError as trouble:
            raise WrongUse(
                f"{wanted.command[0]}: {trouble.strerror}", way_out="Check the command after `--`."
            ) from None
    folder = make_run_folder(wanted.name) if wanted.request is not None else Path()
    launch = wanted.launch(folder)
    torchrun = [sys.executable, "-m", "torch.distributed.run"]
    os.execv(sys.executable, [*torchrun, *launch.options, *launch.script])  # noqa: S606


def _usual_on_hang() -> str:
    """Leave a hang to whoever sits at the terminal; end it where nobody would."""
    watched = sys.stderr.isatty() and sys.stdin.isatty() and not os.environ.get("CI")
    return "report" if watched else "abort"


def _stop_on(asked: Sequence[str], plugins: Plugins) -> frozenset[str]:
    """The codes that end the job, from codes, slugs and `nan`.

    WrongUse: there is no such check, or none that is asked while the job runs, or none that ever proves anything.
    """
    from distdoctor.diagnosis.finding import CERTAIN, Stalls

    slugs = {NAN if check.family == "non-finite" else check.slug: check for check in plugins.checks.values()}
    slugs |= {check.slug: check for check in plugins.checks.values()}
    found = set()
    for word in asked:
        check = plugins.checks.get(word.upper()) or slugs.get(word.lower())
        if check is None:
            raise WrongUse(
                f"--stop-on {word}: there is no such check",
                way_out="Take nan, or a code or slug that `distdoctor rules` lists.",
            )
        if not check.live:
            raise WrongUse(
                f"--stop-on {word}: {check.code} is certain only when the job is over",
                way_out="Leave it out; the report at the end has it.",
            )
        if check.at_most is not CERTAIN and check.stalls is not Stalls.FOREVER:
            raise WrongUse(
                f"--stop-on {word}: {check.code} is never certain, only {check.at_most}",
                way_out="Leave it out; the job goes on, and it is told as soon as it is seen.",
            )
        found.add(check.code)
    return frozenset(found)


def _recorded(probe: ProbeSettings, asked: str | None, deep: frozenset[str]) -> ProbeSettings:
    """How the ranks are recorded, with the streams of the command line and the depth that planted illnesses need."""
    probe = replace(probe, deep=probe.deep | deep)
    return probe if asked is None else replace(probe, streams=_streams(asked))


def _streams(asked: str) -> frozenset[str]:
    streams = frozenset(word.strip() for word in asked.split(",") if word.strip())
    if streams - STREAMS:
        raise WrongUse(
            f"there is no stream {', '.join(sorted(streams - STREAMS))}",
            way_out=f"There are {', '.join(sorted(STREAMS))}.",
        )
    return streams


@contextlib.contextmanager
def _stdout_for_the_report(settings: Settings, output: Path | None) -> Iterator[TextIO]:
    """Where the report goes. One document on stdout cannot share it with what the job prints: that goes to stderr then."""
    if settings.output_format == "text" or output is not None:
        yield sys.stdout
        return
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with os.fdopen(os.dup(kept), "w", encoding="utf-8") as stream:
            yield stream
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def _with_stacks(folder: Path, samples: int = 3) -> Recording | None:
    """What the processes of this job do at this moment; None when they cannot be read (`distdoctor hang-dump` says why)."""
    from distdoctor.attach.attached import recordings_of
    from distdoctor.attach.jobs import job_of_run
    from distdoctor.attach.processes import HostProcesses
    from distdoctor.attach.snapshot import Manner

    try:
        host = HostProcesses.now()
        return recordings_of([job_of_run(folder, host)], host, Manner(samples=samples))[0]
    except DoctorError:
        return None


def _lines(folder: Path) -> dict[int, SourceLine]:
    """The user's line at which each rank of this job is at this moment, as far as it can be seen."""
    seen = _with_stacks(folder, samples=1)
    stacks = seen.stacks if seen is not None else None
    main = {rank: process.main for rank, process in stacks.processes()} if stacks is not None else {}
    return {rank: thread.user_frame.site for rank, thread in main.items() if thread is not None and thread.user_frame}


def _tell(finding: Finding, diagnosis: Diagnosis) -> None:
    """A finding while the job runs, as soon as it is there."""
    from distdoctor.report.text import block_of

    notice("found while the job runs:")
    block = block_of(finding, diagnosis, os.getcwd(), deliver.width_of(sys.stderr))
    deliver.show("\n".join(block) + "\n", sys.stderr)
    _shown_live.append(finding)


def _but_accepted(tell: Tell, baseline: Path | None) -> Tell:
    """`tell`, but for what `--baseline` accepts: it is counted at the end, and nothing to be told of while the job runs."""
    accepted = deliver.accepted_by(baseline)

    def told(finding: Finding, diagnosis: Diagnosis) -> None:
        if not deliver.is_accepted(finding, accepted):
            tell(finding, diagnosis)

    return told if accepted else tell


def _report_or_say(
    outcome: Outcome, settings: Settings, plugins: Plugins, folder: Path, output: Path | None, stdout: TextIO
) -> int:
    """The exit code. Whatever keeps us from reporting, the job has ended as it has."""
    from distdoctor.report.root_cause import failed

    try:
        return _report(outcome, settings, plugins, folder, output, stdout)
    except DoctorError:
        raise
    except BrokenPipeError:
        notice(f"nobody reads our output any more; {os.path.relpath(folder)} has the report")
        job_failed = failed(outcome.diagnosis.job) or bool(outcome.interrupted)
        return deliver.exit_code(outcome.diagnosis, settings, hung=outcome.hung, job_failed=job_failed)
    except Exception as trouble:
        notice(f"the report cannot be written: {type(trouble).__name__}: {trouble}")
        return int(failed(outcome.diagnosis.job) or bool(outcome.interrupted))


def _why_unrecorded(job: Job) -> str:
    """Why nobody recorded, as far as the launcher tells."""
    needs = "the ranks' python needs distdoctor installed and must import torch"
    if Path(job.launcher).name.startswith("accelerate") or "accelerate.commands.launch" in job.argv:
        return (
            "without several GPUs or --multi_gpu, accelerate starts one process, which is no rank "
            f"(distdoctor run --nproc 2 starts the script on two); else {needs}"
        )
    return needs


def _way_to_the_rest(outcome: Outcome, where: str) -> str:
    """What brings the ranks that were not seen, "" where nothing does."""
    if outcome.recording.unread and not outcome.diagnosis.judged_by:
        return f"; `distdoctor examine {where}` reads them"
    elsewhere = set(outcome.recording.missing) - outcome.recording.job.ends.keys()  # whose process nobody here saw end
    return "; on several nodes, point --run-dir at a shared folder" if elsewhere else ""


def _report(
    outcome: Outcome, settings: Settings, plugins: Plugins, folder: Path, output: Path | None, stdout: TextIO
) -> int:
    from distdoctor.report import json_report
    from distdoctor.report.root_cause import failed, from_outside
    from distdoctor.report.verdict import gap, summary

    diagnosis = outcome.diagnosis
    with contextlib.suppress(OSError):  # it has been said while the job ran
        write_whole(folder / "diagnosis.json", json_report.render(diagnosis))
    where = os.path.relpath(folder)
    job_failed = failed(diagnosis.job) or bool(outcome.interrupted)
    if outcome.recording.ranks and gap(diagnosis):
        notice(f"{gap(diagnosis)}{_way_to_the_rest(outcome, where)}")
    if not outcome.recording.ranks:
        notice(f"no rank left a recording in {where}: {_why_unrecorded(outcome.diagnosis.job)}")
    if (
        settings.output_format != "text"
        or output is not None
        or diagnosis.findings
        or (job_failed and not outcome.interrupted)
    ):
        deliver.write(
            deliver.rendered(
                diagnosis,
                settings.output_format,
                plugins,
                known=_shown_live if output is None and deliver.one_reader(stdout, sys.stderr) else (),
                width=deliver.width_of(stdout, output),
            ),
            settings.output_format,
            output,
            stdout,
        )
    deliver.step_summary(diagnosis)
    deliver.troubles(outcome.recording)
    deliver.not_examined(diagnosis)
    _earlier_attempts(outcome.recording)
    if outcome.trouble:
        notice(f"torch's launcher ended: {outcome.trouble}")
    for finding, seconds in outcome.withdrawn[:5]:
        notice(f"withdrawn: {finding.code} {finding.ranks_named}: it waited, and went on after {seconds:.0f} s")
    if not outcome.interrupted and (job_failed or outcome.hung):
        for hint in source_hints(diagnosis, outcome.recording.sources, settings.ignore):
            notice(hint)
    _step_times(diagnosis)
    if outcome.interrupted:
        found = f": {summary(diagnosis)}" if diagnosis.findings else ""
        notice(f"{from_outside(outcome.interrupted)}{found}; its recording is in {where}")
    else:
        remark(f"{_counts(outcome)}: {summary(diagnosis)} ({where})")
    return deliver.exit_code(diagnosis, settings, hung=outcome.hung, job_failed=job_failed)


def _step_times(diagnosis: Diagnosis) -> None:
    """Where the time of the steps went, healthy or not."""
    from distdoctor.report.step_table import step_table

    table = step_table(diagnosis.recording) if diagnosis.recording is not None else None
    if table is not None and not quiet():
        deliver.show("\n".join(table.lines()) + "\n", sys.stderr)


def _counts(outcome: Outcome) -> str:
    """`4 ranks, 312 steps, 8 checks`."""
    ranks = outcome.diagnosis.world_size
    steps = max((int(log.steps["step"][-1]) for log in outcome.recording.ranks.values() if len(log.steps)), default=0)
    checks = len(outcome.diagnosis.examined)
    counts = ((ranks, "rank"), (steps, "step"), (checks, "check"))
    return ", ".join(f"{count} {word}{'' if count == 1 else 's'}" for count, word in counts)


def _earlier_attempts(recording: Recording) -> None:
    """One line on the starts before this one, where a failure ended some."""
    from distdoctor.diagnosis.attempts import story

    words = story(recording.job)
    if words:
        notice(words)
