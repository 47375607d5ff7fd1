"""The processes of this host, and which of them are the ranks of a job: started by torchrun, mpirun, srun, mp.spawn, by hand."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from distdoctor.recording.trace.layout import MOST_RANKS, whole_number
from distdoctor.recording.trace.probe_settings import VARIABLE
from distdoctor.recording.trace.process_key import started_at
from distdoctor.recording.trace.redaction import redacted_arguments

# How launchers tell a process its rank: (rank, world size, local rank, ranks on this host). The first whose rank is set counts.
_LAUNCHERS = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"),
)
# What tells the jobs of one host apart when several are in one environment; the process that started them comes on top.
_JOB_NAMES = (
    "TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "SLURM_JOB_ID", "SLURM_STEP_ID", "OMPI_MCA_ess_base_jobid",
    "PMIX_NAMESPACE", "PMI_JOBID",
)  # fmt: skip
_STEP_SIZES = ("SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE", "SLURM_NODEID")
_KEPT = frozenset({*_JOB_NAMES, VARIABLE, *_STEP_SIZES, *(name for names in _LAUNCHERS for name in names)})
# Steps that are no srun of the user's: the batch script, an interactive shell, the container of the job (slurm.h, 23.02).
_NO_SRUN = 0xFFFFFFF0
_LAUNCHER_WORDS = (
    "torchrun", "torch.distributed.run", "torch.distributed.launch", "accelerate", "deepspeed", "mpirun", "mpiexec", "orterun",
    "srun", "horovodrun", "distdoctor",
)  # fmt: skip
# Processes of multiprocessing that run nobody's code.
_MACHINERY = ("multiprocessing.resource_tracker", "multiprocessing.forkserver", "multiprocessing.semaphore_tracker")
_SPAWNED = "--multiprocessing-fork"


@dataclass(frozen=True)
class Process:
    """One process of the host. `environment` holds the variables that launchers set, None when we may not read them."""

    pid: int
    parent: int
    started: float
    arguments: tuple[str, ...]
    environment: Mapping[str, str] | None
    uid: int
    state: str
    executable: str = ""
    folder: str = ""
    started_ticks: int = 0  # in clock ticks since boot, 0 where unknown: of two processes with one pid it differs
    session: int = 0  # of the kernel's, by the pid that began it; 0 where unknown

    @property
    def is_still_there(self) -> bool:
        """Whether its pid is still its own. A zombie's is."""
        return started_at(self.pid) == self.started_ticks or not self.started_ticks

    @property
    def command(self) -> str:
        """The command line as one would type it, without secrets: `torchrun --nproc 2 train.py`, `python train.py`."""
        words = redacted_arguments(self.arguments)
        if len(words) > 1 and self.is_python and os.path.basename(words[1]) in _LAUNCHER_WORDS:
            words = words[1:]
        return " ".join([os.path.basename(words[0]), *words[1:]]) if words else ""

    @property
    def is_python(self) -> bool:
        """Whether the program is a Python interpreter, by its name."""
        names = (os.path.basename(self.executable), os.path.basename(self.arguments[0] if self.arguments else ""))
        return any(name.startswith(("python", "pypy", "pt_main_thread")) for name in names)

    @property
    def is_machinery(self) -> bool:
        """A helper process of multiprocessing in which no user code runs."""
        return any(name in word for word in self.arguments for name in _MACHINERY)

    @property
    def is_spawned_child(self) -> bool:
        """Started by multiprocessing's spawn or forkserver."""
        return _SPAWNED in self.arguments

    @property
    def is_launcher(self) -> bool:
        """Whether the command line is that of a launcher."""
        words = self.arguments[:4]
        return any(os.path.basename(word) in _LAUNCHER_WORDS or word in _LAUNCHER_WORDS for word in words)


@dataclass(frozen=True)
class RankPlacement:
    """Which rank a process is. Sizes are 0 where unknown."""

    rank: int
    world_size: int = 0
    local_rank: int = -1
    local_size: int = 0


@dataclass(frozen=True)
class FoundJob:
    """The ranks of one job on this host: rank -> process. `absent` should be here and are not, `elsewhere` are on other hosts.

    `launcher` is the process that started them, None when it has gone: init, which takes its ranks in, is none.
    """

    ranks: Mapping[int, Process]
    launcher: Process | None = None
    world_size: int = 0
    absent: tuple[int, ...] = ()
    elsewhere: tuple[int, ...] = ()
    run_folder: Path | None = None
    assumed: bool = False  # the ranks are numbered in the order of their start: nothing says which is which
    hidden: tuple[int, ...] = field(default=())  # pids that may be ranks, and that we may not look into

    @property
    def command(self) -> str:
        """What the user started."""
        first = self.launcher or next(iter(self.ranks.values()), None)
        return first.command if first else ""


@dataclass(frozen=True)
class HostProcesses:
    """All processes of this host that we can see, at one moment."""

    processes: Mapping[int, Process]

    @classmethod
    def now(cls) -> HostProcesses:
        found = (_read(entry) for entry in psutil.process_iter())
        return cls({one.pid: one for one in found if one is not None})

    def children(self, pid: int) -> list[Process]:
        return sorted((p for p in self.processes.values() if p.parent == pid), key=lambda p: (p.started, p.pid))

    def descendants(self, pid: int) -> list[Process]:
        """Children and their children, parents first."""
        found: list[Process] = []
        for child in self.children(pid):
            found += [child, *self.descendants(child.pid)]
        return found

    def ancestors(self, pid: int) -> list[Process]:
        """The parent, its parent, ..., as far as we can see."""
        found: list[Process] = []
        one = self.processes.get(pid)
        while one is not None and one.parent in self.processes and len(found) < 64:
            one = self.processes[one.parent]
            found.append(one)
        return found

    def hides(self, process: Process) -> bool:
        """Whether a process keeps from us which rank it is."""
        return process.environment is None and process.is_python


def _read(entry: psutil.Process) -> Process | None:
    try:
        with entry.oneshot():
            started = started_at(entry.pid)  # before anything else: what is read next of another process is then seen
            arguments, status = tuple(entry.cmdline()), entry.status()
            if status == psutil.STATUS_ZOMBIE or not arguments:
                return None
            return Process(
                pid=entry.pid,
                parent=entry.ppid(),
                started=entry.create_time(),
                arguments=arguments,
                environment=_environment(entry),
                uid=entry.uids().effective,
                state=status,
                executable=_quiet(entry.exe),
                folder=_quiet(entry.cwd),
                started_ticks=started,
                session=os.getsid(entry.pid),
            )
    except (psutil.Error, ProcessLookupError):
        return None


def _environment(entry: psutil.Process) -> dict[str, str] | None:
    try:
        everything = entry.environ()
    except (psutil.Error, OSError):
        return None
    return {name: value for name, value in everything.items() if name in _KEPT}


def _quiet(ask: object) -> str:
    try:
        return str(ask())  # type: ignore[operator]
    except (psutil.Error, OSError):
        return ""


def place_of(process: Process) -> RankPlacement | None:
    """The rank that its environment gives a process, None without one."""
    environment = process.environment or {}
    for rank, world, local, local_size in _LAUNCHERS:
        number = _number(environment, rank, -1)
        if number >= 0:
            if rank == "SLURM_PROCID":
                return _task_of_step(environment)
            size, here = _number(environment, world, 0), _number(environment, local_size, 0)
            return RankPlacement(number, size, _number(environment, local, -1), here)
    return None


def _task_of_step(environment: Mapping[str, str]) -> RankPlacement | None:
    """The rank of a task that srun started; None for the batch script itself, which is task 0 of nothing."""
    step = whole_number(environment.get("SLURM_STEP_ID", ""))
    if step is None or step >= _NO_SRUN:
        return None
    node = _number(environment, "SLURM_NODEID", 0)
    per_node = _tasks_per_node(environment.get("SLURM_STEP_TASKS_PER_NODE", ""))
    here = per_node[node] if 0 <= node < len(per_node) else _number(environment, "SLURM_NTASKS_PER_NODE", 0)
    # A step may be smaller than its job: SLURM_NTASKS is the job's.
    size = _number(environment, "SLURM_STEP_NUM_TASKS", sum(per_node)) or _number(environment, "SLURM_NTASKS", 0)
    return RankPlacement(_number(environment, "SLURM_PROCID", 0), size, _number(environment, "SLURM_LOCALID", -1), here)


def _number(environment: Mapping[str, str], name: str, otherwise: int) -> int:
    """A variable as the number of a rank or of ranks; of another user's process it may hold anything."""
    number = whole_number(environment.get(name, ""))
    return number if number is not None and number <= MOST_RANKS else otherwise


def _tasks_per_node(words: str) -> list[int]:
    """`8(x3),4` as 8, 8, 8, 4; [] when it is not written so, or by no job."""
    found: list[int] = []
    for word in words.split(",") if words else ():
        match = re.fullmatch(r"([0-9]{1,6})(?:\(x([0-9]{1,6})\))?", word.strip())
        if match is None or len(found) + int(match[2] or 1) > MOST_RANKS:
            return []
        found += [int(match[1])] * int(match[2] or 1)
    return found


def ranks_by_environment(host: HostProcesses) -> dict[int, RankPlacement]:
    """pid -> rank, of every Python process that is one: not of its children, which inherit the variables, nor of launchers."""
    candidates = {
        p.pid: place for p in host.processes.values() if _may_be_rank(p) and (place := place_of(p)) is not None
    }
    for pid in list(candidates):
        if host.processes[pid].is_launcher and any(child.is_python for child in host.children(pid)):
            del candidates[pid]
    return {
        pid: place for pid, place in candidates.items() if not any(a.pid in candidates for a in host.ancestors(pid))
    }


def _may_be_rank(process: Process) -> bool:
    return (
        process.is_python and not process.is_machinery and not process.is_spawned_child and process.pid != os.getpid()
    )


def jobs_of(host: HostProcesses, places: Mapping[int, RankPlacement], *, assumed: bool = False) -> list[FoundJob]:
    """The jobs that these ranks form, each with the ranks that are missing."""
    groups: dict[tuple[object, ...], dict[int, RankPlacement]] = {}
    for pid, place in places.items():
        groups.setdefault(_job_key(host, pid, place), {})[pid] = place
    return [job for _, group in sorted(groups.items(), key=lambda g: min(g[1])) for job in _split(host, group, assumed)]


def _job_key(host: HostProcesses, pid: int, place: RankPlacement) -> tuple[object, ...]:
    """What the ranks of one job have in common. Two agents of one job on one host share the address of the store."""
    process = host.processes[pid]
    environment = process.environment or {}
    named = tuple(environment.get(name, "") for name in _JOB_NAMES)
    is_named = (environment.get("MASTER_PORT") and environment.get("RANK")) or environment.get("SLURM_STEP_ID")
    started_by = 0 if is_named else launcher_pid(host, pid)  # each task of a step may have a shell of its own
    return (named, place.world_size, started_by)


def launcher_pid(host: HostProcesses, pid: int) -> int:
    """The process that started a rank, past shells and containers' shims that stand between."""
    for ancestor in host.ancestors(pid):
        if ancestor.is_launcher or ancestor.is_python:
            return ancestor.pid
    return host.processes[pid].parent


def _split(host: HostProcesses, group: Mapping[int, RankPlacement], assumed: bool) -> list[FoundJob]:
    """One job, or several where two processes claim the same rank: then whoever started them tells them apart."""
    ranks = [place.rank for place in group.values()]
    if len(set(ranks)) == len(ranks):
        return [_job(host, group, assumed)]
    by_launcher: dict[int, dict[int, RankPlacement]] = {}
    for pid, place in group.items():
        by_launcher.setdefault(launcher_pid(host, pid), {})[pid] = place
    return [_job(host, part, assumed) for _, part in sorted(by_launcher.items())]


def _job(host: HostProcesses, group: Mapping[int, RankPlacement], assumed: bool) -> FoundJob:
    ranks = {place.rank: host.processes[pid] for pid, place in sorted(group.items(), key=lambda item: item[1].rank)}
    places = list(group.values())
    world = max((place.world_size for place in places), default=0) or max(ranks, default=-1) + 1
    launchers = {launcher_pid(host, pid) for pid in group}
    if len(launchers) > 1:  # a shell around each rank started nothing but that rank
        launchers = {pid for pid in launchers if pid in host.processes and host.processes[pid].is_launcher} or {0}
    absent = _absent(places, ranks, world)
    settings = {(host.processes[pid].environment or {}).get(VARIABLE, "") for pid in group} - {""}
    launcher = host.processes.get(min(launchers))
    return FoundJob(
        ranks=ranks,
        launcher=launcher if launcher is not None and _may_have_started(launcher, ranks.values()) else None,
        world_size=world,
        absent=absent,
        elsewhere=tuple(rank for rank in range(world) if rank not in ranks and rank not in absent),
        run_folder=Path(settings.pop()).parent if len(settings) == 1 else None,
        assumed=assumed,
    )


def _may_have_started(parent: Process, ranks: Iterable[Process]) -> bool:
    """Whether these were ranks of their parent from the start. Where a launcher has ended, its ranks are those of init, or of
    whatever shell or shim is the first process of a container. Torch's agent and multiprocessing are programs in Python, and
    what a shell starts is in its session."""
    if parent.is_launcher or parent.is_python:
        return True
    return not any(
        rank.is_spawned_child or "TORCHELASTIC_RUN_ID" in (rank.environment or {}) or rank.session != parent.session
        for rank in ranks
    )


def _absent(places: Iterable[RankPlacement], ranks: Mapping[int, Process], world: int) -> tuple[int, ...]:
    """Ranks that belong on this host and have no process: known where launchers number the ranks of a host in a row."""
    expected: set[int] = set()
    for place in places:
        if place.local_rank >= 0 and place.local_size:
            first = place.rank - place.local_rank
            expected |= set(range(first, first + place.local_size))
    return tuple(sorted(rank for rank in expected if rank not in ranks and rank < (world or rank + 1)))
