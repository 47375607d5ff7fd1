"""A run folder: what one launch leaves behind, and how it is read back.

job.json                 argv, world size, launcher, when; then how each rank ended (written by the launcher)
rank-00003.a0.trace       what rank 3 did, first start (a1: after one restart)
rank-00003.a0.trace.memory-PID-FD   there was no room: the trace is in the memory of process PID
rank-00003.a0.json       its environment
rank-00003.a0.pass-12.drawn   which samples its record 12 of a pass stands for, where they are many
rank-00003.a0.sock       while it runs: where torch's flight recorder of the rank answers
no-probe-PID.txt         why a process that should have been recorded is not
comparison.json          gradients against a baseline, where they were compared
rank-00003.a0.traceback.txt   its uncaught exception, if that is how it ended
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from distdoctor.errors import NothingToInspect, UnreadableRecording
from distdoctor.recording.comparison import read_comparison
from distdoctor.recording.recording import Job, RankEnd, RankTrace, Recording, Trouble
from distdoctor.recording.resumption import read_resumption
from distdoctor.recording.trace.layout import STREAMS
from distdoctor.recording.trace.reader import TraceReader, read_trace
from distdoctor.recording.trace.sample_bitmap import kept_files

JOB_FILE = "job.json"
_SOCKET = re.compile(r"rank-(\d+)\.a(\d+)\.sock$")
_END_ALONE = ("gradients", "memory")  # their trouble ends nothing else
_TAPE = re.compile(r"rank-(\d+)\.a(\d+)\.trace(?:\.memory-(\d+)-(\d+))?$")


def trace_paths(folder: Path) -> dict[int, Path]:
    """The newest trace of each rank (that of the last restart)."""
    newest: dict[int, tuple[int, Path]] = {}
    for path in folder.iterdir() if folder.is_dir() else ():
        match = _TAPE.match(path.name)
        if match:
            rank, attempt = int(match[1]), int(match[2])
            if rank not in newest or attempt > newest[rank][0]:
                # Where there was no room on the disk, an empty file says in which process's memory the trace lies.
                newest[rank] = (attempt, Path(f"/proc/{match[3]}/fd/{match[4]}") if match[3] else path)
    return {rank: path for rank, (_, path) in sorted(newest.items())}


def socket_paths(folder: Path) -> dict[int, Path]:
    """Where the flight recorder of each rank answers (of its last restart); of a rank that has ended nobody does."""
    newest: dict[int, tuple[int, Path]] = {}
    for path in folder.iterdir() if folder.is_dir() else ():
        match = _SOCKET.match(path.name)
        if match:
            newest[int(match[1])] = max(newest.get(int(match[1]), (-1, path)), (int(match[2]), path))
    return {rank: path for rank, (_, path) in sorted(newest.items())}


def read_run(folder: Path, *, only: frozenset[str] | None = None) -> Recording:
    """The recording in a run folder. A trace that cannot be read becomes a trouble; the other ranks are still there.

    NothingToInspect: the folder holds no recording at all.
    """
    paths = trace_paths(folder)
    job = read_job(folder)
    if not paths and job is None:
        raise NothingToInspect(
            f"{folder} holds no recording", way_out="Point at a run folder, by default .distdoctor/runs/latest."
        )
    ranks: dict[int, RankTrace] = {}
    troubles: list[Trouble] = []
    sets = kept_files(folder)
    for rank, path in paths.items():
        try:
            log = log_of(read_trace(path, only=only), _environment(folder, rank, path))
            ranks[rank] = replace(log, drawn_sets=sets.get((rank, log.attempt), {}))
        except UnreadableRecording as trouble:
            troubles.append(Trouble(f"{trouble}. {trouble.way_out}", rank))
    for note in sorted(folder.glob("no-probe-*.txt")):
        troubles.append(Trouble(f"process {note.stem[9:]} is not recorded: {note.read_text('utf-8', 'replace')[:500]}"))
    found = assemble(ranks, job or Job(), troubles)
    return replace(found, comparison=read_comparison(folder), resumption=read_resumption(folder))


def assemble(ranks: Mapping[int, RankTrace], job: Job, troubles: Iterable[Trouble] = ()) -> Recording:
    """A recording from its parts, with what the ranks themselves noted as trouble."""
    from distdoctor.recording.trace.layout import EventKind

    noted = [
        _fell_silent(rank, log.text(int(event["text"])))
        for rank, log in ranks.items()
        for event in log.events[log.events["kind"] == EventKind.TROUBLE]
    ]
    return Recording(job=job, ranks=dict(sorted(ranks.items())), troubles=(*troubles, *noted))


def _fell_silent(rank: int, what: str) -> Trouble:
    """The probe's own note. Some streams end alone; any other trouble ends the whole recording of the rank."""
    alone = what.partition(":")[0]
    ended = frozenset({alone}) if alone in _END_ALONE else STREAMS
    return Trouble(f"the recorder of rank {rank} fell silent: {what}", rank, ended)


def log_of(trace: TraceReader, environment: Mapping[str, Any] | None = None) -> RankTrace:
    """A rank's log from its trace."""
    from distdoctor.recording.recording import no_rows

    names = ("calls", "groups", "steps", "events", "passes", "blocks")
    rows: dict[str, Any] = {name: trace.rows.get(name, no_rows(name)) for name in names}
    head = trace.head
    return RankTrace(
        rank=head.rank,
        texts=trace.texts,
        lost=dict(trace.lost),
        pid=head.pid,
        host=head.host,
        attempt=head.attempt,
        monotonic_to_wall_ns=head.wall_ns - head.monotonic_ns,
        environment=environment or {},
        more={name: found for name, found in trace.rows.items() if name not in names},
        **rows,
    )


def _environment(folder: Path, rank: int, trace_path: Path) -> dict[str, Any]:
    match = _TAPE.match(trace_path.name)
    try:
        found = json.loads((folder / f"rank-{rank:05d}.a{match[2] if match else 0}.json").read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def job_to_json(job: Job) -> str:
    """The text of `job.json`."""
    ends = {
        str(rank): {
            "exit_code": end.exit_code,
            "signal": end.signal,
            "ended_by_launcher": end.ended_by_launcher,
            "at_ns": end.at_ns,
            **(
                {
                    "kernel_kills": end.kernel_kills,
                    "memory_limit": end.memory_limit,
                    "kernel_counter": end.kernel_counter,
                    "last_line": end.last_line,
                    "last_line_ns": end.last_line_ns,
                }
                if end.kernel_kills is not None
                else {}
            ),
        }
        for rank, end in sorted(job.ends.items())
    }
    fields = {
        "argv": list(job.argv),
        "world_size": job.world_size,
        "running": job.running,
        "exit_code": job.exit_code,
        "launcher": job.launcher,
        "strategy": job.strategy,
        "ends": ends,
    }
    return json.dumps(fields, indent=1)


def read_job(folder: Path) -> Job | None:
    """The job as the launcher described it, None without (or with a torn) `job.json`."""
    try:
        fields = json.loads((folder / JOB_FILE).read_text("utf-8"))
        ends = {int(rank): RankEnd(**end) for rank, end in fields["ends"].items()}
        return Job(
            argv=tuple(fields["argv"]),
            world_size=fields["world_size"],
            ends=ends,
            running=fields["running"],
            exit_code=fields["exit_code"],
            launcher=fields["launcher"],
            strategy=fields["strategy"],
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
