"""Examine a run folder after the fact: what `examine` and the end of `run` do alike."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

from distdoctor.diagnosis.check import Check
from distdoctor.diagnosis.diagnosis import Diagnosis
from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.remedy import Remedy
from distdoctor.errors import NothingToInspect
from distdoctor.launch.new_run_folder import RUNS
from distdoctor.launch.sources import with_sources
from distdoctor.launch.suppressions import suppress
from distdoctor.recording.open import read_any
from distdoctor.recording.recording import Recording
from distdoctor.recording.trace.run_folder import JOB_FILE, read_run, trace_paths

IN_BACKEND = "DD122"  # the program is done with its part: only a look from outside can say more, at the network for one


def find_run(path: Path | None) -> Path:
    """The run folder that the user means: the one given, the newest below it, or the latest of this working directory.

    NothingToInspect: there is none.
    """
    start = Path.cwd() / RUNS / "latest" if path is None else path
    for folder in (start, start / "latest", start / RUNS / "latest"):
        if folder.is_dir() and (trace_paths(folder) or (folder / JOB_FILE).exists()):
            return folder.resolve()
    if start.is_file() and start.suffix == ".trace":
        return start.parent.resolve()
    raise NothingToInspect(
        f"there is no recording at {start}",
        way_out="Record one with `distdoctor run`, or point at a run folder (.distdoctor/runs/...).",
    )


def read_whole(folder: Path) -> Recording:
    """The recording in a run folder with everything that can be read about it now. Without any rank no stream was recorded."""
    recording = with_sources(read_run(folder))
    return replace(recording, streams=recorded_streams(folder, recording))


def read_at(path: Path | None) -> Recording:
    """The recording that the user means: of a run folder, else flight recorder dumps or a job log at `path`.

    NothingToInspect: there is none.
    """
    try:
        return read_whole(find_run(path))
    except NothingToInspect:
        if path is None:
            raise
    return with_sources(read_any(path))


def recorded_streams(folder: Path, recording: Recording) -> frozenset[str]:
    """What was recorded, as the launcher wrote it down (`run --streams`)."""
    if not recording.ranks:
        return frozenset()
    try:
        noted = json.loads((folder / JOB_FILE).read_text("utf-8")).get("streams")
    except (OSError, ValueError, AttributeError):
        return recording.streams
    return frozenset(map(str, noted)) if isinstance(noted, list) else recording.streams


def diagnose(
    recording: Recording, checks: Mapping[str, Check], remedies: Mapping[str, Remedy], ignored: Collection[str] = ()
) -> Diagnosis:
    """What all checks say, without what the user has accepted."""
    return suppress(examine(recording, checks.values(), remedies), recording.sources, ignored)


def with_what_was_seen_live(diagnosis: Diagnosis, live: Diagnosis | None) -> Diagnosis:
    """The diagnosis after the end, led by findings that were true while the job ran and that its end has wiped out.

    A hang that distdoctor ended by SIGTERM looks, to some checks, like ranks that died. What hung in the backend keeps the words
    of the time when the connections could still be looked at.
    """
    if live is None:
        return diagnosis
    if any(finding.code == IN_BACKEND for finding in live.findings):
        kept = tuple(finding for finding in diagnosis.findings if finding.code != IN_BACKEND)
        diagnosis = replace(diagnosis, findings=kept)
    known = {(finding.code, finding.ranks) for finding in (*diagnosis.findings, *diagnosis.suppressed)}
    wiped = tuple(finding for finding in live.findings if (finding.code, finding.ranks) not in known)
    if not wiped:
        return diagnosis
    return replace(diagnosis, findings=(*wiped, *diagnosis.findings), remedies={**live.remedies, **diagnosis.remedies})
