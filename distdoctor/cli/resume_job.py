"""`distdoctor check-data --resume`: the job to a checkpoint, and on from it, beside the one in one piece."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from distdoctor.errors import DoctorError, WrongUse

SECONDS = 3600.0  # for each of the two runs


@dataclass(frozen=True)
class Protocol:
    """How the job is ended at a checkpoint and resumption. `script` empty: a reference training, which knows how.

    `kill_at`: a script is not ended but killed, after so many optimizer steps; 0: it is not.
    """

    options: tuple[str, ...]
    script: tuple[str, ...]
    stop: tuple[str, ...]
    resume: tuple[str, ...]
    at: int
    kill_at: int = 0

    @classmethod
    def of(cls, values: dict[str, Any], command: Sequence[str] | None) -> Protocol:
        """From the command line, whose options for it are taken out of `values`."""
        from distdoctor.cli.torchrun_options import torchrun_arguments

        stop, resume = (tuple(shlex.split(values[name] or "")) for name in ("stop_args", "resume_args"))
        script = tuple(command) if command is not None else tuple(values["script"])
        kill_at = values["kill_at"] or 0
        if kill_at and (values["strategy"] or stop):
            raise WrongUse(
                f"--kill-at {kill_at} goes with a script of yours, in the place of --stop-args",
                way_out='`--resume --kill-at 50 --resume-args "--resume c.pt" train.py`; a reference training takes --at STEP.',
            )
        if not values["strategy"] and not ((stop or kill_at) and resume):
            raise WrongUse(
                "--resume has to know how your script saves and resumes",
                way_out='Add --stop-args "--max-steps 50 --save c.pt" --resume-args "--resume c.pt", in its own words.',
            )
        if values["strategy"] and (stop or resume):
            raise WrongUse(
                "--stop-args and --resume-args are for scripts", way_out="A reference training only takes --at STEP."
            )
        return cls(
            tuple(torchrun_arguments(values)),
            () if values["strategy"] else script,
            stop,
            resume,
            values["at"] or 0,
            kill_at,
        )


def compare_runs(folder: Path, protocol: Protocol) -> None:
    """Run the job twice more and leave the comparison in the run folder, for the check and the table."""
    from distdoctor.cli.deliver import notice
    from distdoctor.diagnosis.data import resumption
    from distdoctor.launch import resumed_runs
    from distdoctor.launch.resumed_runs import AFTER, BEFORE
    from distdoctor.recording.open import open_run
    from distdoctor.recording.resumption import Resumption

    whole = open_run(folder)
    commands = _scripts(protocol) if protocol.script else _trainings(folder, protocol, _steps(whole.ranks))
    for name, command in commands.items():
        kill_at = protocol.kill_at if name == BEFORE else 0
        to = f"killed after {kill_at} steps" if kill_at else "to a checkpoint"
        notice(f"the same job once more, {to if name == BEFORE else 'on from the checkpoint'}")
        failed = resumed_runs.run(command, folder / name, SECONDS, kill_at=kill_at)
        if failed:
            Resumption(trouble=f"the {name} job failed: {failed}").write(folder)
            return
    try:
        before, after = open_run(folder / BEFORE), open_run(folder / AFTER)
        resumption.compare(whole, before, after, killed=bool(protocol.kill_at)).write(folder)
    except DoctorError as trouble:
        Resumption(trouble=str(trouble)).write(folder)


def _scripts(protocol: Protocol) -> Mapping[str, list[str]]:
    from distdoctor.launch.resumed_runs import AFTER, BEFORE, torchrun

    return {
        name: torchrun(protocol.options, [*protocol.script, *more])
        for name, more in ((BEFORE, protocol.stop), (AFTER, protocol.resume))
    }


def _trainings(folder: Path, protocol: Protocol, steps: int) -> Mapping[str, list[str]]:
    from distdoctor.launch.resumed_runs import AFTER, BEFORE, torchrun
    from distdoctor.workloads.request import TrainingRequest

    request = TrainingRequest.read(folder / "request.json")
    checkpoint = str(folder / "checkpoint")
    requests = {
        BEFORE: replace(request, steps=protocol.at or max(1, steps * 2 // 3), save=checkpoint, evaluate=False),
        AFTER: replace(request, resume=checkpoint),
    }
    for name, one in requests.items():
        one.write(folder / f"request-{name}.json")
    script = ("--module", "distdoctor.workloads.train")
    return {name: torchrun(protocol.options, [*script, str(folder / f"request-{name}.json")]) for name in requests}


def _steps(ranks: Mapping[int, Any]) -> int:
    """Optimizer steps of the uninterrupted job."""
    return max((int(log.steps["step"][-1]) for log in ranks.values() if len(log.steps)), default=0)
