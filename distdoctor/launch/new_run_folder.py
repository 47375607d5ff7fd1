"""Make the folder that one launch records into: `.distdoctor/runs/<UTC>-<name>/`, readable by its owner alone."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from distdoctor.errors import WrongUse
from distdoctor.recording.files import NEW, write_whole
from distdoctor.recording.trace.run_folder import is_run_folder

RUNS = Path(".distdoctor/runs")


def make_run_folder(
    name: str, asked: Path | None = None, *, shared: bool = False, notice: Callable[[str], None] = lambda words: None
) -> Path:
    """A new folder (or the one `asked` for), with `latest` beside it pointing at it. Absolute.

    Where the working directory takes none, it lies among the temporary files, and `notice` says so: the job has not asked for a
    recording. `shared`: launchers on other nodes record into the same folder, so it may hold something already.
    WrongUse: the folder asked for holds another recording, or none can be made.
    """
    try:
        if asked is not None:
            return _asked_for(asked.absolute(), shared)
        return _new(Path.cwd() / RUNS, name)
    except OSError as trouble:
        why = trouble
    if asked is None:
        try:
            folder = Path(tempfile.mkdtemp(prefix="distdoctor-"))
        except OSError:
            pass
        else:
            notice(f"no run folder can be made here ({why.strerror or why}); the recording is in {folder}")
            return folder
    raise WrongUse(f"no run folder can be made: {why}", way_out="Point --run-dir at a folder that can be written to.")


def make_shared_folder(name: str, *, latest: bool = True) -> Path:
    """The folder that all launchers of one job share when they work in one directory: whoever comes first makes it. `latest`:
    it is what commands without a path are about.

    WrongUse: it cannot be made.
    """
    runs = Path.cwd() / RUNS
    try:
        _make_runs(runs)
        folder = runs / name
        folder.mkdir(mode=0o700, exist_ok=True)
        if latest:
            _point_latest_at(folder)
    except OSError as trouble:
        raise WrongUse(
            f"no run folder can be made: {trouble}", way_out="Point --run-dir at a folder that can be written to."
        ) from trouble
    return folder


def _asked_for(folder: Path, shared: bool) -> Path:
    for parent in [one for one in reversed(folder.parents) if not one.exists()]:
        parent.mkdir(
            mode=0o755, exist_ok=True
        )  # under any umask: who can write there can put another folder in the place of ours
    folder.mkdir(mode=0o700, exist_ok=True)
    if not shared:  # on a file system that several hosts share the owner may be called otherwise
        _refuse_foreign(folder)
    if not shared and is_run_folder(folder):
        raise WrongUse(
            f"{folder} holds the recording of another run",
            way_out="Give every run a folder of its own, or leave --run-dir out.",
        )
    return folder


def _refuse_foreign(folder: Path) -> None:
    """PermissionError where a folder, or a link, of somebody else lies under the name that was asked for."""
    for about in (os.lstat(folder), os.stat(folder)):
        if about.st_uid not in (os.geteuid(), 0):
            raise PermissionError(errno.EPERM, "belongs to somebody else", str(folder))


def _new(runs: Path, name: str) -> Path:
    _make_runs(runs)
    stem = f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{re.sub(r'[^A-Za-z0-9._-]+', '_', name)[:60] or 'run'}"
    for number in range(1, 1000):
        folder = runs / (stem if number == 1 else f"{stem}-{number}")
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            continue
        with contextlib.suppress(OSError):  # a folder of that name, or no room: the run has its own name
            _point_latest_at(folder)
        return folder
    raise FileExistsError(f"{runs / stem} and 999 more exist")


def _refuse_others(folder: Path) -> None:
    """PermissionError where somebody else could lay a link in our way: what we write there would end where it points."""
    about = os.lstat(folder)
    if not stat.S_ISDIR(about.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, "is no directory", str(folder))
    if about.st_uid != os.geteuid():
        raise PermissionError(errno.EPERM, "belongs to somebody else", str(folder))
    if about.st_mode & 0o002:
        raise PermissionError(errno.EPERM, "may be written by everybody", str(folder))


def _make_runs(runs: Path) -> None:
    """`.distdoctor/runs`, for its owner alone, which git does not see."""
    for folder in (runs.parent, runs):  # mkdir(parents=True) would give the outer one the mode of the umask
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        _refuse_others(folder)
    with contextlib.suppress(FileExistsError):
        os.close(os.open(runs.parent / ".gitignore", NEW, 0o600))
        write_whole(runs.parent / ".gitignore", "*\n")


def _point_latest_at(folder: Path) -> None:
    """`latest` is replaced in one step: whoever reads it meanwhile sees the old or the new one."""
    draft = folder.parent / f".latest-{secrets.token_hex(8)}"
    draft.symlink_to(folder.name)
    draft.replace(folder.parent / "latest")
