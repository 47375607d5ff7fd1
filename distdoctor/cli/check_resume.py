"""`distdoctor check-resume`: a job in one piece, and the same job ended at a step and resumed, compared step by step."""

from __future__ import annotations

import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from distdoctor.cli.check_data import CheckDataCommand
from distdoctor.cli.run import ARGV, COMMAND, LIST_DRILLS, run
from distdoctor.errors import DoctorError, WrongUse

PLACE = "{dir}"  # in the script's arguments: a folder of its own for each history of the job
SECONDS = 3600.0  # for each of the two runs


@dataclass(frozen=True)
class ResumePlan:
    """How the job is ended and resumed. `script` empty: a reference training, which knows how.

    `place` is a folder of ours. A script that is run again runs in a copy of the working folder there: with the files that were
    there when the job began, at `began_wall_ns`, and none that the uninterrupted run has written.
    """

    options: tuple[str, ...]
    script: tuple[str, ...]
    stop: tuple[str, ...]
    resume: tuple[str, ...]
    at: int
    kill: bool
    place: Path
    began_wall_ns: int

    @classmethod
    def of(cls, values: dict[str, Any], command: Sequence[str] | None, place: Path) -> ResumePlan:
        """From the command line."""
        from distdoctor.cli.torchrun_options import torchrun_arguments

        stop, resume = (tuple(shlex.split(values[name] or "")) for name in ("stop_args", "resume_args"))
        if stop and (values["kill"] or values["at"]):
            raise WrongUse(
                "--stop-args makes the script end by itself; --kill and --at end it from outside",
                way_out="Take one of them: `--stop-args '--max-steps 50'`, or `--at 50`, or `--at 50 --kill`.",
            )
        if values["strategy"] and (stop or resume or values["kill"]):
            raise WrongUse(
                "--stop-args, --resume-args and --kill are for scripts",
                way_out="A reference training only takes --at STEP.",
            )
        if command is not None:
            raise WrongUse("check-resume starts the ranks itself", way_out="Name the script: `check-resume train.py`.")
        script = () if values["strategy"] else tuple(values["script"])
        options = tuple(torchrun_arguments(values))
        return cls(options, script, stop, resume, values["at"] or 0, values["kill"], place, time.time_ns())

    def command(self, history: str, more: Sequence[str] = ()) -> list[str]:
        """The script's own command, with the folder of this history in it."""
        from distdoctor.launch.resumed_runs import torchrun

        (self.place / history).mkdir(exist_ok=True)
        name, *words = in_place([*self.script, *more], self.place / history)
        return torchrun(self.options, [str(Path(name).resolve()) if Path(name).is_file() else name, *words])

    def working_folder(self) -> Path:
        """The copy, made when it is asked for first. Of the sources it is the originals that are run."""
        from distdoctor.launch.working_copy import copy_folder

        copy = self.place / "work"
        if not copy.exists():
            copy_folder(Path.cwd(), copy, unless_written_since_ns=self.began_wall_ns)
        return copy


def in_place(words: Sequence[str], folder: Path) -> list[str]:
    """The words with this folder for `{dir}`."""
    return [word.replace(PLACE, str(folder)) for word in words]


@click.command(
    "check-resume",
    cls=CheckDataCommand,
    params=[
        *(parameter for parameter in run.params if not isinstance(parameter, click.Argument)),
        click.Option(
            ["--at"], type=click.IntRange(1), metavar="STEP", help="End the job there.  [default: 2/3 of its steps]"
        ),
        click.Option(["--kill"], is_flag=True, help="End it by SIGKILL, as when a machine fails.  [default: SIGTERM]"),
        click.Option(
            ["--stop-args"], metavar="ARGS", help="Instead: arguments that make your script save a checkpoint and exit."
        ),
        click.Option(
            ["--resume-args"],
            metavar="ARGS",
            help="Arguments that make your script resume.  [default: it finds its checkpoint itself]",
        ),
        *(parameter for parameter in run.params if isinstance(parameter, click.Argument)),
    ],
    panels=run.panels,
    context_settings=run.context_settings,
)
@click.pass_context
def check_resume(ctx: click.Context, /, **values: Any) -> None:
    """Does my job resume as if it had never been interrupted? Run it both ways, and compare every step.

    The job runs three times: uninterrupted, up to a step, and resumed from its checkpoint. The first step, rank and
    piece of state that differ are named (weights, optimizer state, learning rate, loss scale, data, buffers), above the
    two loss curves. On a CPU the comparison is exact. If two uninterrupted runs already differ, the losses are compared
    within four times their difference.

    Pass the script's own arguments for resuming with --resume-args; without them the same command is started again, as
    torchrun and most schedulers do, and the script must find its checkpoint. It is ended by SIGTERM after --at steps (a script
    that saves then does so), by SIGKILL with --kill, or by itself with --stop-args. The interrupted job runs in a copy of this
    folder without what the uninterrupted one has written. `{dir}` in the arguments stands for a folder, elsewhere, that the two
    do not share: `check-resume --nproc 2 train.py --out {dir}`.
    """
    if LIST_DRILLS in ctx.meta:
        from distdoctor.cli.fire_drills import show_drills

        show_drills(ctx.meta[LIST_DRILLS])
        return
    from distdoctor.cli.run_job import execute
    from distdoctor.recording.trace.probe_settings import ProbeSettings

    probe = ProbeSettings(deep=frozenset({"gradients"}))
    text = values["output_format"] in (None, "text") or values["output"] is not None
    with tempfile.TemporaryDirectory(prefix="distdoctor-resume-", ignore_cleanup_errors=True) as folder:
        plan = ResumePlan.of(values, ctx.meta[COMMAND], Path(folder))
        (plan.place / "whole").mkdir()
        values["script"] = tuple(in_place(values["script"], plan.place / "whole"))
        code = execute(ctx.meta[ARGV], values, ctx.meta[COMMAND], lambda at: _compare(at, plan, text=text), probe)
    ctx.exit(code)


def _compare(folder: Path, plan: ResumePlan, *, text: bool) -> None:
    """Run the job twice more, leave both comparisons in the run folder, and show the answer."""
    from distdoctor.cli import deliver
    from distdoctor.diagnosis.checkpoint import replayed
    from distdoctor.diagnosis.data import resumption
    from distdoctor.launch.post_mortem import open_recording
    from distdoctor.launch.resumed_runs import AFTER, BEFORE
    from distdoctor.recording.replay import Replay
    from distdoctor.recording.resumption import Resumption
    from distdoctor.report import resume_table

    whole = open_recording(folder)
    steps = max((int(log.steps["step"][-1]) for log in whole.ranks.values() if len(log.steps)), default=0)
    ended = "by itself" if plan.stop or not plan.script else "SIGKILL" if plan.kill else "SIGTERM"
    trouble = _run_twice(folder, plan, plan.at or max(1, steps * 2 // 3), ended)
    try:
        if not trouble:
            before, after = open_recording(folder / BEFORE), open_recording(folder / AFTER)
            replay = replayed.compare(whole, before, after, ended=ended)
            resumption.compare(whole, before, after, killed=ended != "by itself").write(folder)
    except DoctorError as error:
        trouble = str(error)
    if trouble:
        replay = Replay(ended=ended, trouble=trouble)
        Resumption(trouble=trouble).write(folder)
    replay.write(folder)
    deliver.show(resume_table.render(replay) + "\n", sys.stdout if text else sys.stderr)


def _run_twice(folder: Path, plan: ResumePlan, at: int, ended: str) -> str:
    """Why one of the runs failed, "" when none did."""
    from distdoctor.cli.deliver import notice
    from distdoctor.launch import resumed_runs
    from distdoctor.launch.resumed_runs import BEFORE, STREAMS
    from distdoctor.recording.trace.probe_settings import ProbeSettings

    probe = ProbeSettings(
        STREAMS | {"gradients", "checkpoints"}, deep=frozenset({"gradients"}), kill_gently=ended == "SIGTERM"
    )
    commands = _scripts(plan) if plan.script else _trainings(folder, plan, at)
    for name, command in commands.items():
        kills = name == BEFORE and ended != "by itself"
        words = f"ended by {ended} after {at} steps" if kills else "to a checkpoint"
        notice(f"the same job once more, {words if name == BEFORE else 'on from the checkpoint'}")
        failed = resumed_runs.run(
            command,
            folder / name,
            SECONDS,
            kill_at=at if kills else 0,
            probe=probe,
            within=plan.working_folder() if plan.script else None,
        )
        if failed:
            return f"the {name} job failed: {failed}"
    shutil.rmtree(plan.place / "resumed", ignore_errors=True)
    return ""


def _scripts(plan: ResumePlan) -> Mapping[str, list[str]]:
    from distdoctor.launch.resumed_runs import AFTER, BEFORE

    return {name: plan.command("resumed", more) for name, more in ((BEFORE, plan.stop), (AFTER, plan.resume))}


def _trainings(folder: Path, plan: ResumePlan, at: int) -> Mapping[str, list[str]]:
    from distdoctor.launch.resumed_runs import AFTER, BEFORE, torchrun
    from distdoctor.workloads.request import TrainingRequest

    request = TrainingRequest.read(folder / "request.json")
    checkpoint = str(plan.place / "checkpoint")
    requests = {
        BEFORE: replace(request, steps=at, save=checkpoint, evaluate=False),
        AFTER: replace(request, resume=checkpoint),
    }
    for name, one in requests.items():
        one.write(folder / f"request-{name}.json")
    script = ("--module", "distdoctor.workloads.train")
    return {name: torchrun(plan.options, [*script, str(folder / f"request-{name}.json")]) for name in requests}
