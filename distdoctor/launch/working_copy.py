"""A temporary copy of a folder in which a job can run again without a word of the user's being changed."""

from __future__ import annotations

import os
import shutil
from collections import deque
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

MOST_ENTRIES = 20_000
LARGEST_COPY = 64 << 20  # bytes of one file; a larger one is data, and linked
LARGEST_COPIES = 1 << 30  # bytes of all
_LEFT_OUT = frozenset({".git", ".hg", ".distdoctor", "__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache"})


def copy_folder(folder: Path, to: Path, *, needed: Collection[Path] = (), unless_written_since_ns: int = 0) -> None:
    """Make `to` look like `folder`: small files are copied, large ones and whole folders beyond MOST_ENTRIES linked.

    `needed` files are copied in any case. What was written since a moment (wall clock) is output of the job and left out, unless
    it is a source: the job begins as it began then.
    """
    above = {parent for path in needed for parent in path.parents}
    entries, copied = 0, 0
    waiting = deque([folder])
    while waiting:
        here = waiting.popleft()
        there = to / here.relative_to(folder)
        there.mkdir(parents=True, exist_ok=True)
        for entry in _listed(here):
            path, target = Path(entry.path), there / entry.name
            entries += 1
            if entry.name in _LEFT_OUT or path == to:
                continue
            if entry.is_dir(follow_symlinks=False):
                hidden = entry.name.startswith(".") or (path / "pyvenv.cfg").exists()
                if path in above or (entries <= MOST_ENTRIES and not hidden):
                    waiting.append(path)
                else:
                    target.symlink_to(path)
                continue
            copied += _brought(entry, target, path in needed, LARGEST_COPIES - copied, unless_written_since_ns)
    _without_empty_outputs(folder, to, unless_written_since_ns)


def _listed(folder: Path) -> list[os.DirEntry[str]]:
    """Sources first: they are copied while there is room."""
    with suppress(OSError), os.scandir(folder) as found:
        return sorted(found, key=lambda entry: (not entry.name.endswith(".py"), entry.name))
    return []


def _brought(entry: os.DirEntry[str], target: Path, needed: bool, room: int, since_ns: int) -> int:
    """Copy or link one file; how many bytes were copied."""
    with suppress(OSError):
        if entry.is_symlink() and not needed:
            target.symlink_to(os.path.join(os.path.dirname(entry.path), os.readlink(entry.path)))
            return 0
        about = entry.stat()
        is_source = entry.name.endswith(".py")
        if not needed and not entry.is_file():
            return 0  # a socket, a pipe
        if since_ns and about.st_mtime_ns >= since_ns and not (needed or is_source):
            return 0
        if needed or about.st_size <= min(LARGEST_COPY, room):
            shutil.copy2(entry.path, target)
            return about.st_size
        target.symlink_to(entry.path)
    return 0


def _without_empty_outputs(folder: Path, to: Path, since_ns: int) -> None:
    """Take out the folders that the job made: what was in them was left out."""
    for here, _, _ in sorted(os.walk(to), key=lambda one: -len(one[0])):
        original = folder / Path(here).relative_to(to)
        with suppress(OSError):
            if since_ns and Path(here) != to and original.stat().st_mtime_ns >= since_ns and not os.listdir(here):
                os.rmdir(here)
