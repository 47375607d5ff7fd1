"""Find the jobs that run on this host, or the one that a pid or a run folder belongs to."""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from distdoctor.attach import spawned_ranks
from distdoctor.attach.processes import FoundJob, HostProcesses, Process, RankPlacement, jobs_of, ranks_by_environment
from distdoctor.attach.py_spy import dump, dump_all
from distdoctor.errors import CouldNotLook, NothingToInspect
from distdoctor.recording.trace.probe_settings import VARIABLE


def all_jobs(host: HostProcesses) -> list[FoundJob]:
    """Every distributed job of this host of which a rank or a waiting launcher is there.

    NothingToInspect: there is none.
    """
    jobs = _all_jobs(host)
    if not jobs:
        raise NothingToInspect(
            f"no distributed training job runs on this host ({len(host.processes)} processes seen)",
            way_out="Name a process with --pid, a run folder with --run, or examine what is left of a job: distdoctor examine.",
        )
    return jobs


def _all_jobs(host: HostProcesses) -> list[FoundJob]:
    by_environment = ranks_by_environment(host)
    jobs = jobs_of(host, by_environment)
    jobs += _spawned(host, by_environment)
    taken = {process.pid for job in jobs for process in job.ranks.values()}
    jobs += _hidden(host, taken)
    return jobs + _waiting_launchers(host, jobs)


def job_of(pid: int, host: HostProcesses) -> FoundJob:
    """The job that a process belongs to as rank, worker or launcher; any other Python process alone, as rank 0.

    NothingToInspect: there is no such process, or no Python runs in it.
    """
    process = host.processes.get(pid)
    if process is None:
        raise NothingToInspect(
            f"there is no process {pid}", way_out="`distdoctor hang-dump` without --pid finds the jobs of this host."
        )
    known = jobs_of(host, ranks_by_environment(host))
    job = _one_with(pid, known, host) or _one_with(pid, _all_jobs(host), host)
    if job is not None:
        return job
    _require_python(process)
    return FoundJob({0: process}, world_size=1)


def _one_with(pid: int, jobs: Sequence[FoundJob], host: HostProcesses) -> FoundJob | None:
    family = {pid, *(ancestor.pid for ancestor in host.ancestors(pid))}
    for job in jobs:
        if family & {one.pid for one in job.ranks.values()}:
            return job
    launched = next((job for job in jobs if job.launcher is not None and job.launcher.pid == pid), None)
    below = {child.pid for child in host.descendants(pid)}  # of a shell or a slurmstepd around the ranks
    return launched or next((job for job in jobs if below & {one.pid for one in job.ranks.values()}), None)


def _require_python(process: Process) -> None:
    seen = dump(process.pid)
    if not seen.is_python or (seen.trouble and not process.is_python and not seen.refused):
        raise NothingToInspect(
            f"process {process.pid} ({process.command[:80]}) is no Python process",
            way_out="Give the pid of a rank, or of the launcher that started it.",
        )
    if seen.refused and not process.is_python:
        raise CouldNotLook(
            f"process {process.pid} ({process.command[:80]}) cannot be read: {seen.trouble}",
            way_out="Run distdoctor as the user of that process, or as root.",
        )


def job_of_run(folder: Path, host: HostProcesses) -> FoundJob:
    """The processes that record into a run folder, and those that were told to and have not come that far.

    NothingToInspect: none of them is alive on this host.
    """
    # In here: numpy takes as long as all else that hang-dump needs before it looks, and most jobs record nothing.
    from distdoctor.recording.trace.reader import read_trace
    from distdoctor.recording.trace.run_folder import trace_paths

    places: dict[int, RankPlacement] = {}
    traces = trace_paths(folder)
    for rank, path in traces.items():
        head = read_trace(path, only=frozenset()).head
        if head.pid in host.processes and head.process.lives_here:  # elsewhere its pid is somebody else's
            places[head.pid] = RankPlacement(rank, head.world_size, head.local_rank)
    found = jobs_of(host, _with_later_ones(places, traces.keys(), folder, host))
    if not found:
        raise NothingToInspect(
            f"no process of the run in {folder} is alive on this host",
            way_out=f"`distdoctor examine {folder}` diagnoses what it left.",
        )
    return replace(found[0], run_folder=folder)


def _with_later_ones(
    places: Mapping[int, RankPlacement], recorded: Container[int], folder: Path, host: HostProcesses
) -> dict[int, RankPlacement]:
    """Those that record, with the number of ranks on this host, and the ranks beside them that have not imported torch yet.
    `recorded` are all ranks that left a recording, those of other hosts too.
    """
    found, world = dict(places), max((place.world_size for place in places.values()), default=0)
    for pid, told in ranks_by_environment(host).items() if places else ():
        known = places.get(pid)
        if known is not None and known.rank == told.rank:
            found[pid] = replace(known, local_size=told.local_size)
        elif (
            known is None
            and told.rank < world
            and told.rank not in recorded
            and _is_to_record(host.processes[pid], folder)
        ):
            found[pid] = replace(told, world_size=world)
    return found


def _is_to_record(process: Process, folder: Path) -> bool:
    settings = (process.environment or {}).get(VARIABLE, "")
    return bool(settings) and Path(settings).parent.resolve() == folder.resolve()


def _spawned(host: HostProcesses, known: Iterable[int]) -> list[FoundJob]:
    families = spawned_ranks.families(host, known)
    dumps = dump_all({pid for parent, children in families.items() for pid in (parent, *(c.pid for c in children))})
    places: dict[int, RankPlacement] = {}
    for parent, children in families.items():
        places |= spawned_ranks.places(parent, children, dumps)
    return jobs_of(host, places, assumed=True) if places else []


def _hidden(host: HostProcesses, taken: set[int]) -> list[FoundJob]:
    """Python children of launchers that keep their environment from us: ranks in the order of their start, presumably."""
    found = []
    for launcher in host.processes.values():
        if not launcher.is_launcher:
            continue
        children = [child for child in host.children(launcher.pid) if host.hides(child) and not child.is_machinery]
        children = [child for child in children if child.pid not in taken and not child.is_launcher]
        if children:
            ranks = dict(enumerate(children))
            found.append(FoundJob(ranks, launcher, len(ranks), assumed=True))
    return found


def _waiting_launchers(host: HostProcesses, jobs: Iterable[FoundJob]) -> list[FoundJob]:
    """torch's agents (torchrun's and `distdoctor run`'s) that have started no rank yet: they wait for agents on other hosts."""
    busy = {job.launcher.pid for job in jobs if job.launcher is not None}
    found = []
    for process in host.processes.values():
        words = process.arguments[:4]
        is_agent = process.is_python and (
            any(w.endswith("torchrun") or w.startswith("torch.distributed.") for w in words) or _is_our_agent(words)
        )
        if is_agent and process.pid not in busy and not any(c.is_python for c in host.descendants(process.pid)):
            found.append(FoundJob({}, process))
    return found


def _is_our_agent(words: Sequence[str]) -> bool:
    """`distdoctor run ...` and `python -m distdoctor run ...`."""
    names = [Path(word).name for word in words]
    return any((name, after) == ("distdoctor", "run") for name, after in itertools.pairwise(names))
