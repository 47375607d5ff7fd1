"""The same job once more, from a copy of its folder with a patch in it, watched until it has passed where it was ill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from distdoctor.errors import DoctorError
from distdoctor.launch.post_mortem import open_recording
from distdoctor.launch.working_copy import copy_folder
from distdoctor.recording.open import open_run
from distdoctor.recording.recording import Recording

PAST = 2  # steps, or calls, beyond the last of the first run
SECONDS_BETWEEN = 0.5
SECONDS_TO_REPORT = 60.0


@dataclass(frozen=True)
class JobProgress:
    """How far a job came: optimizer steps and collectives, of its last and of its first rank."""

    steps: tuple[int, int] = (0, 0)
    calls: tuple[int, int] = (0, 0)

    @classmethod
    def of(cls, recording: Recording) -> JobProgress:
        logs = [recording.ranks.get(rank) for rank in range(recording.world_size)]
        steps = [int(log.steps[-1]["step"]) if log is not None and len(log.steps) else 0 for log in logs] or [0]
        calls = [int(log.calls[-1]["seq"]) if log is not None and len(log.calls) else 0 for log in logs] or [0]
        return cls((min(steps), max(steps)), (min(calls), max(calls)))

    def is_past(self, first: JobProgress) -> bool:
        """Whether every rank has gone on beyond the furthest of the first run."""
        if self.steps[1] or first.steps[1]:
            return self.steps[0] >= first.steps[1] + PAST
        return self.calls[0] >= first.calls[1] + PAST


@dataclass(frozen=True)
class SecondRunOrder:
    """What to run again. `arguments`: of distdoctor, the options before the script and the rest. `texts`: what the patched files
    hold. `stop_past`: the first run's progress, None where only its end tells."""

    options: tuple[str, ...]
    rest: tuple[str, ...]
    folder: Path
    texts: Mapping[str, str]
    stop_past: JobProgress | None
    started_wall_ns: int
    limit_seconds: float


@dataclass(frozen=True)
class SecondRun:
    """What was seen of it. `folder` is where it ran, `stopped`: it was ended because it was past where the first was ill.
    `last_words`: the end of what it printed."""

    recording: Recording | None
    folder: Path
    stopped: bool
    timed_out: bool
    seconds: float
    last_words: str = ""


def run_again(again: SecondRunOrder, place: Path) -> SecondRun:
    """Run the job in a copy below `place`, until it is past the first run's progress, at its end, or out of time."""
    copy, records = place / again.folder.name, place / "recording"
    copy_folder(
        again.folder,
        copy,
        needed=[Path(path) for path in again.texts],
        unless_written_since_ns=again.started_wall_ns,
    )
    for path, text in again.texts.items():
        (copy / Path(path).relative_to(again.folder)).write_bytes(text.encode())
    began = time.monotonic()
    with (place / "output").open("wb") as output:
        process = subprocess.Popen(
            _command(again, copy, records),
            cwd=_moved(os.getcwd(), again.folder, copy),
            env=_environment(again.folder, copy),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        stopped, timed_out = _watched(process, again, records, began)
    recording = None
    with suppress(DoctorError):
        recording = open_recording(records)
    words = (place / "output").read_text(errors="replace").strip()[-2000:]
    return SecondRun(recording, copy, stopped, timed_out, time.monotonic() - began, words)


def _command(again: SecondRunOrder, copy: Path, records: Path) -> list[str]:
    options = [_moved(word, again.folder, copy) for word in again.options]
    rest = [_moved(word, again.folder, copy) for word in again.rest]
    mine = [
        "--no-try-fix",
        "--run-dir",
        str(records),
        "--on-hang",
        "abort",
        "--output-format",
        "json",
        "-o",
        os.devnull,
    ]
    return [sys.executable, "-m", "distdoctor", "run", *options, *mine, *rest]


def _moved(word: str, folder: Path, copy: Path) -> str:
    """An argument that names something in the folder, as it is called in the copy."""
    head, sign, path = word.rpartition("=") if word.startswith("-") else ("", "", word)
    inside = path == str(folder) or path.startswith(f"{folder}{os.sep}")
    return f"{head}{sign}{copy}{path[len(str(folder)) :]}" if inside else word


def _environment(folder: Path, copy: Path) -> dict[str, str]:
    """Modules that are imported from the folder (PYTHONPATH, an editable install) are imported from the copy."""
    known = [os.path.abspath(entry) for entry in sys.path if entry and "site-packages" not in entry]
    mine = [_moved(entry, folder, copy) for entry in known if os.path.isdir(_moved(entry, folder, copy))]
    inside = [entry for entry in mine if entry.startswith(str(copy))]
    before = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([*inside, *(_moved(one, folder, copy) for one in before if one)]),
    }


def _watched(process: subprocess.Popen[bytes], again: SecondRunOrder, records: Path, began: float) -> tuple[bool, bool]:
    """(whether it was stopped past the place of the illness, whether it ran out of time)."""
    try:
        while process.poll() is None:
            time.sleep(SECONDS_BETWEEN)
            if again.stop_past is not None and _progress(records).is_past(again.stop_past):
                return True, False
            if time.monotonic() - began > again.limit_seconds:
                return False, True
        return False, False
    finally:
        _ended(process)


def _progress(records: Path) -> JobProgress:
    try:
        return JobProgress.of(open_run(records))
    except (DoctorError, OSError):
        return JobProgress()


def _ended(process: subprocess.Popen[bytes]) -> None:
    """Ask the second run to end and report; end it and its ranks by force where it does not."""
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(SECONDS_TO_REPORT)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def root_of(script: Sequence[str], paths: Sequence[str], cwd: str) -> Path:
    """The folder to copy: the working folder where everything lies below it, else the one that script and patched files share.
    Of a module that is imported by its package that is the folder which holds the package."""
    scripts = [os.path.abspath(word) for word in script[:1] if os.path.isfile(word)]
    if all(_is_below(path, cwd) for path in (*scripts, *paths)):
        return Path(cwd)
    return Path(os.path.commonpath([*map(os.path.dirname, scripts), *map(_imported_from, paths)]))


def _is_below(path: str, folder: str) -> bool:
    return path.startswith(folder.rstrip("/") + "/")


def _imported_from(path: str) -> str:
    """The entry of sys.path that a module lies below, else its own folder."""
    found = [os.path.abspath(entry) for entry in sys.path if entry and "site-packages" not in entry]
    return max((entry for entry in found if _is_below(path, entry)), key=len, default=os.path.dirname(path))
