"""Whether this launcher is one of several that a scheduler started for one job: `srun -n 4 distdoctor run -- python train.py`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import psutil

# Steps that are no srun of the user's: the batch script, an interactive shell, the container of the job (slurm.h, 23.02).
_NO_SRUN = 0xFFFFFFF0


@dataclass(frozen=True)
class SchedulerStep:
    """`name` is the same for every launcher of the job and for no other job: `slurm-77.0`. This is `task` of `tasks`."""

    name: str
    task: int
    tasks: int


def _commands_above() -> Iterable[Sequence[str]]:
    """The command lines of the processes that started this one, the nearest first."""
    for parent in psutil.Process().parents():
        try:
            yield parent.cmdline()
        except psutil.Error:
            continue


def step_of(
    environment: Mapping[str, str], commands_above: Callable[[], Iterable[Sequence[str]]] = _commands_above
) -> SchedulerStep | None:
    """The step that this process is a task of, as srun or mpirun told it; None where nobody did, or where it is alone."""
    found = _slurm(environment) or _open_mpi(environment) or _mpich(environment, commands_above)
    return found if found is not None and found.tasks > 1 else None


def _slurm(environment: Mapping[str, str]) -> SchedulerStep | None:
    job, step = environment.get("SLURM_JOB_ID", ""), environment.get("SLURM_STEP_ID", "")
    if not job or not step.isdigit() or int(step) >= _NO_SRUN:
        return None
    tasks = _number(environment, "SLURM_STEP_NUM_TASKS") or _number(environment, "SLURM_NTASKS")
    again = _number(environment, "SLURM_RESTART_COUNT")  # a job that is requeued keeps its number
    name = _plain(f"slurm-{job}.{step}{f'-again{again}' if again else ''}")
    return SchedulerStep(name, _number(environment, "SLURM_PROCID"), tasks)


def _open_mpi(environment: Mapping[str, str]) -> SchedulerStep | None:
    job = environment.get("PMIX_NAMESPACE") or environment.get("OMPI_MCA_ess_base_jobid", "")
    if not job or "OMPI_COMM_WORLD_RANK" not in environment:
        return None
    tasks = _number(environment, "OMPI_COMM_WORLD_SIZE")
    return SchedulerStep(_plain(f"mpi-{job}"), _number(environment, "OMPI_COMM_WORLD_RANK"), tasks)


def _mpich(
    environment: Mapping[str, str], commands_above: Callable[[], Iterable[Sequence[str]]]
) -> SchedulerStep | None:
    """MPICH's mpiexec gives its tasks no name of the job, but their proxy on every host the one port to which it reports."""
    tasks = _number(environment, "PMI_SIZE")
    if tasks < 2 or "PMI_RANK" not in environment:
        return None
    job = environment.get("PMI_JOBID") or _control_port(commands_above())
    return SchedulerStep(_plain(f"mpich-{job}"), _number(environment, "PMI_RANK"), tasks) if job else None


def _control_port(commands: Iterable[Sequence[str]]) -> str:
    """HOST:PORT of mpiexec, "" where none of these is a proxy of it."""
    for words in commands:
        if words and words[0].rpartition("/")[2] == "hydra_pmi_proxy" and "--control-port" in words[:-1]:
            return words[words.index("--control-port") + 1]
    return ""


def _number(environment: Mapping[str, str], name: str) -> int:
    value = environment.get(name, "")
    return int(value) if value.isdigit() else 0


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "_", name)[:80]
