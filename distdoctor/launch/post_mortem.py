"""Examine a run folder after the fact: what `examine` and the end of `run` do alike."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from os.path import exists, isdir, isfile
from pathlib import Path

from distdoctor.diagnosis.check import Check
from distdoctor.diagnosis.diagnosis import Diagnosis
from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.remedy import Remedy
from distdoctor.diagnosis.said_live import SaidLive, with_what_was_said
from distdoctor.errors import DoctorError, NothingToInspect
from distdoctor.launch.new_run_folder import RUNS
from distdoctor.launch.processes import is_alive
from distdoctor.launch.suppressions import suppress
from distdoctor.recording.bundle import bundles_in, looks_like_bundle, read_bundle
from distdoctor.recording.flight.reading import read_dumps
from distdoctor.recording.merge import merged
from distdoctor.recording.open import is_dump, open_run, parts_of, ras_answers_in, read_any, stack_files_in
from distdoctor.recording.ras import read_ras
from distdoctor.recording.recording import Recording
from distdoctor.recording.source_texts import with_sources
from distdoctor.recording.stack_files import read_stacks, with_stacks
from distdoctor.recording.states import StateSnapshot, earlier_snapshots, snapshots_in
from distdoctor.recording.trace.run_folder import bytes_here, is_run_folder
from distdoctor.recording.trace.state_file import SAVE, START, WEIGHTS

MOST_EARLIER_RUNS = 2
SECTIONS_OF_SAMPLES = frozenset({"passes", "blocks", "steps"})


def by_name(path: Path) -> Path:
    """A run of this working directory by the name that `distdoctor runs` lists, or `latest`, where nothing else is called so."""
    run = Path.cwd() / RUNS / path
    return run if len(path.parts) == 1 and not os.path.lexists(path) and is_run_folder(run) else path


def find_run(path: Path | None) -> Path:
    """The run folder that the user means: the one given, the newest below it, or the latest of this working directory.

    NothingToInspect: there is none.
    """
    start = Path.cwd() / RUNS / "latest" if path is None else by_name(path)
    for folder in (start, start / "latest", start / RUNS / "latest"):
        if is_run_folder(folder):
            return folder.resolve()
    if isfile(start) and start.suffix == ".trace":
        return start.parent.resolve()
    raise NothingToInspect(
        f"there is no recording at {start}",
        way_out="Record one with `distdoctor run`, or point at a run folder (.distdoctor/runs/...).",
    )


def with_end(recording: Recording) -> Recording:
    """The recording of a job that claims to run, although none of its processes does: nobody was left to note its end.

    Only the host that ran them can tell; of ranks of other hosts we believe the claim.
    """
    ranks = recording.ranks.values()
    gone = [log.process.is_of_this_machine and not (log.process.lives_here and is_alive(log.pid)) for log in ranks]
    if not recording.job.running or not gone or not all(gone):
        return recording
    return replace(recording, job=replace(recording.job, running=False, end_unseen=True))


@dataclass(frozen=True)
class Means:
    """Who reads dumps where they are many, and how the bytes of a trace are read, wherever they lie."""

    executor: Executor | None = None
    bytes_of: Callable[[Path], bytes] = bytes_here


def open_recording(*places: Path | Recording | None, means: Means = Means()) -> Recording:
    """The recording of one job with everything that can be read about it now: the one way to open it, once for a command.

    A place is a run folder (or one below which the latest lies), a folder of run folders, a host bundle, a document of hang-dump,
    flight recorder dumps, a job log, `-`; several are parts of one job. None, or no place: the latest run of this
    working directory. A recording is a part that has been read already.

    NothingToInspect: at one of them there is none. WrongUse: they are parts of different jobs.
    """
    named = [by_name(place) for place in places if isinstance(place, Path)]
    dumps = [place for place in named if is_dump(place)]
    answers = _only_ras(named) if len(named) > 1 else {}
    stacks = [place for place in named if isfile(place) and stack_files_in(place)] if len(named) > 1 else []
    rest = [place for place in named if place not in dumps and place not in answers and place not in stacks]
    parts = [part for place in rest for part in _parts(place, means)]
    if answers:  # they are looks at one job, one after the other, and not parts of it
        parts.append(read_ras(*(path for paths in answers.values() for path in paths)))
    parts += [place for place in places if isinstance(place, Recording)]
    if not parts and len(dumps) < 2 and not stacks:
        return _at(dumps[0] if dumps else None, means)
    if dumps:
        parts.append(read_dumps(dumps, means.executor))
    seen = [read_stacks(stacks)] if stacks else []
    found = merged(parts or seen)
    return with_sources(with_stacks(found, seen[0]) if seen and parts else found)


def _only_ras(places: Iterable[Path]) -> dict[Path, list[Path]]:
    """The places that hold answers of NCCL's RAS and nothing else, with their files."""
    found = {place: ras_answers_in(place) for place in places if exists(place) and str(place) != "-"}
    return {
        place: files
        for place, files in found.items()
        if files and (isfile(place) or len(files) == sum(1 for _ in place.iterdir()))
    }


def _at(place: Path | None, means: Means) -> Recording:
    """What lies at one place: a run, else flight recorder dumps, a job log, or what comes by the standard input."""
    if str(place) == "-":
        return with_sources(read_any(Path("-")))
    try:
        return _of_run(find_run(place), means.bytes_of)
    except NothingToInspect:
        if place is None:
            raise
    return with_sources(read_any(place, means.executor))


def _of_run(folder: Path, bytes_of: Callable[[Path], bytes]) -> Recording:
    """What lies in a run folder, with what only the end of the job shows."""
    recording = with_end(open_run(folder, bytes_of=bytes_of))
    states = snapshots_in(folder)
    earlier = earlier_snapshots(folder, states)
    return replace(
        recording,
        states=states,
        earlier_states=earlier,
        earlier_runs=_runs_gone_on_from(folder, states, earlier, bytes_of),
    )


def _runs_gone_on_from(
    folder: Path,
    states: tuple[StateSnapshot, ...],
    earlier: tuple[StateSnapshot, ...],
    bytes_of: Callable[[Path], bytes],
) -> dict[str, Recording]:
    """What was drawn in earlier runs that saved weights with which this one began: the newest of them, by name."""
    began = {digest for one in states if one.document.when == START for digest in one.digests(WEIGHTS).values()}
    saved = [
        one for one in earlier if one.document.when == SAVE and not began.isdisjoint(one.digests(WEIGHTS).values())
    ]
    starts = {one.run: one.attempt for one in sorted(saved, key=lambda one: one.document.wall_ns)}
    found = {}
    for name in list(starts)[-MOST_EARLIER_RUNS:]:
        with contextlib.suppress(DoctorError):
            path = folder.resolve().parent / name
            found[name] = open_run(path, only=SECTIONS_OF_SAMPLES, attempt=starts[name], bytes_of=bytes_of)
    return found


def _parts(path: Path, means: Means) -> list[Recording]:
    """What lies at one place, as parts of one job."""
    if isfile(path) and looks_like_bundle(path):
        return [read_bundle(path)]
    documents = bundles_in(path) if isfile(path) and path.suffix == ".json" else []
    if documents:
        return documents[:1]
    below = parts_of(path) if isdir(path) and not is_run_folder(path) and not exists(path / RUNS) else []
    if below and not exists(path / "latest"):
        return [part for one in below for part in _parts(one, means)]
    return [_at(path, means)]


def diagnose(
    recording: Recording, checks: Mapping[str, Check], remedies: Mapping[str, Remedy], ignored: Collection[str] = ()
) -> Diagnosis:
    """What all checks say, with what was said while the job ran, without what the user has accepted."""
    found = suppress(examine(recording, checks.values(), remedies), recording.sources, ignored)
    said = SaidLive.of(recording)
    if said is None:
        return found
    return suppress(with_what_was_said(found, said, checks), recording.sources, ignored)
