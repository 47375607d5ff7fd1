"""A recording of a job that already runs: what its stacks show, and what its ranks recorded where distdoctor started them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from distdoctor.attach import flight_recorders, ras
from distdoctor.attach.processes import FoundJob, HostProcesses
from distdoctor.attach.snapshot import Manner, look_at
from distdoctor.errors import DoctorError
from distdoctor.recording.flight.backend_state import state_of
from distdoctor.recording.open import open_run
from distdoctor.recording.recording import Job, RankEnd, Recording, SourceLine
from distdoctor.recording.source_texts import read_sources
from distdoctor.recording.stacks import Stacks
from distdoctor.recording.trace.redaction import redacted_arguments


def recordings_of(jobs: Sequence[FoundJob], host: HostProcesses, manner: Manner) -> list[Recording]:
    """One recording of each job, all looked at together."""
    looks = look_at(jobs, host, manner)
    return [recording_of(job, stacks, host) for job, stacks in zip(jobs, looks, strict=True)]


def recording_of(job: FoundJob, stacks: Stacks, host: HostProcesses) -> Recording:
    """What is known about one job."""
    stacks = _whole_paths(stacks, job)
    recording = _recorded(job)
    started = job.launcher or next(iter(job.ranks.values()), None)
    about = Job(
        argv=tuple(redacted_arguments(started.arguments)) if started else (),
        world_size=job.world_size,
        ends=_ends(job),
        running=True,
        read_at_ns=time.monotonic_ns(),
        read_wall_ns=time.time_ns(),
        launcher=job.launcher.command if job.launcher else "",
    )
    if recording is not None:
        ends = {**about.ends, **recording.job.ends}
        about = replace(
            recording.job,
            running=True,
            read_at_ns=about.read_at_ns,
            read_wall_ns=about.read_wall_ns,
            ends=ends,
            world_size=recording.world_size,
        )
    else:
        recording = Recording(about, {}, frozenset())
    paths = {site.path for site in _sites(stacks)}
    dumps = flight_recorders.dumps_of(job.run_folder) if job.run_folder is not None else {}
    backend = {rank: state_of(rank, found) for rank, found in dumps.items()}
    told = ras.report_of_job(process.pid for process in job.ranks.values())
    sources = {**recording.sources, **read_sources(paths - recording.sources.keys(), recording.ranks).texts}
    return replace(recording, job=about, stacks=stacks, sources=sources, backend=backend, ras=told)


def _recorded(job: FoundJob) -> Recording | None:
    if job.run_folder is None:
        return None
    try:
        return open_run(job.run_folder)
    except DoctorError:
        return None


def _ends(job: FoundJob) -> dict[int, RankEnd]:
    """How ranks ended that have no process any more: with 0, because torchrun ends everybody as soon as one rank fails."""
    if job.launcher is None or not job.ranks or not job.absent:
        return {}
    elastic = any((process.environment or {}).get("TORCHELASTIC_RUN_ID") for process in job.ranks.values())
    return {rank: RankEnd(0 if elastic else None) for rank in job.absent}


def _whole_paths(stacks: Stacks, job: FoundJob) -> Stacks:
    """The stacks with absolute paths: `python train.py` knows its script by the name it was given."""
    folders = {process.pid: process.folder for process in job.ranks.values()}
    ranks = {}
    for rank, seen in stacks.ranks.items():
        if seen.process is None or not folders.get(seen.process.pid):
            ranks[rank] = seen
            continue
        folder = Path(folders[seen.process.pid])
        threads = tuple(
            replace(thread, frames=tuple(replace(f, path=_absolute(f.path, folder)) for f in thread.frames))
            for thread in seen.process.threads
        )
        ranks[rank] = replace(seen, process=replace(seen.process, threads=threads))
    return replace(stacks, ranks=ranks)


def _absolute(path: str, folder: Path) -> str:
    return path if path.startswith(("/", "<")) else str(folder / path)


def _sites(stacks: Stacks) -> Iterable[SourceLine]:
    """Every user line that a stack mentions."""
    for seen in stacks.ranks.values():
        for process in (seen.process, *seen.workers):
            for thread in process.threads if process is not None else ():
                yield from (frame.site for frame in thread.frames if frame.is_users)
