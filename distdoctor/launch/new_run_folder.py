"""Make the folder that one launch records into: `.distdoctor/runs/<UTC>-<name>/`, readable by its owner alone."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

from distdoctor.errors import WrongUse
from distdoctor.recording.trace.run_folder import is_run_folder

RUNS = Path(".distdoctor/runs")


def make_run_folder(name: str, asked: Path | None = None, *, shared: bool = False) -> Path:
    """A new folder (or the one `asked` for), with `latest` beside it pointing at it. Absolute.

    `shared`: launchers on other nodes record into the same folder, so it may hold something already.
    WrongUse: the folder asked for holds another recording, or cannot be made.
    """
    try:
        if asked is not None:
            return _asked_for(asked.absolute(), shared)
        return _new(Path.cwd() / RUNS, name)
    except OSError as trouble:
        raise WrongUse(
            f"no run folder can be made: {trouble}", way_out="Point --run-dir at a folder that can be written to."
        ) from trouble


def _asked_for(folder: Path, shared: bool) -> Path:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not shared and is_run_folder(folder):
        raise WrongUse(
            f"{folder} holds the recording of another run",
            way_out="Give every run a folder of its own, or leave --run-dir out.",
        )
    return folder


def _new(runs: Path, name: str) -> Path:
    runs.mkdir(mode=0o700, parents=True, exist_ok=True)
    ignore = runs.parent / ".gitignore"
    if not ignore.exists():
        ignore.write_text("*\n", encoding="utf-8")
    stem = f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{re.sub(r'[^A-Za-z0-9._-]+', '_', name)[:60] or 'run'}"
    for number in range(1, 1000):
        folder = runs / (stem if number == 1 else f"{stem}-{number}")
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            continue
        _point_latest_at(folder)
        return folder
    raise FileExistsError(f"{runs / stem} and 999 more exist")


def _point_latest_at(folder: Path) -> None:
    """`latest` is replaced in one step: whoever reads it meanwhile sees the old or the new one."""
    draft = folder.parent / f".latest-{os.getpid()}"
    draft.unlink(missing_ok=True)
    draft.symlink_to(folder.name)
    draft.replace(folder.parent / "latest")


def write_whole(path: Path, text: str) -> None:
    """Write a file whole or not at all, for its owner alone."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with open(draft, "w", encoding="utf-8", opener=lambda p, flags: os.open(p, flags, 0o600)) as file:
        file.write(text)
    draft.replace(path)
