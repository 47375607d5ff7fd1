"""Read files that somebody else may have put there: a FIFO, a device or a file without end must not stop or fill the reader.
Write files of ours whole, following no link that was laid in the way.

Standard library only: this module is imported inside the ranks.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from pathlib import Path
from typing import Any, BinaryIO

from distdoctor.errors import UnreadableRecording
from distdoctor.recording.foreign_values import parse_json

LARGEST_JSON = 64 << 20  # of what distdoctor writes beside the traces: a line per layer or rank
NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_WAY_OUT = "Copy the folder again with regular files, or leave that one out."


def opened(path: Path) -> BinaryIO:
    """A regular file, open for reading: what everybody uses who reads what somebody else may have put there.

    UnreadableRecording: it cannot be opened, or is no regular file.
    """
    try:
        # Without O_NONBLOCK opening a FIFO waits for a writer, and opening some devices acts on them.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except (OSError, ValueError) as trouble:
        raise _refused(path, f"cannot be read: {getattr(trouble, 'strerror', None) or trouble}") from trouble
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise _refused(path, "is no regular file")
    return os.fdopen(fd, "rb")


def head_of(path: Path, count: int) -> bytes:
    """The first bytes of a regular file, by which it is known; none of what is none, or cannot be read."""
    try:
        with opened(path) as file:
            return file.read(count)
    except (OSError, UnreadableRecording):
        return b""


def read_bytes(path: Path, most_bytes: int, *, from_end: bool = False) -> bytes:
    """The content of a regular file of at most `most_bytes`; of a larger one its end, where that is asked for.

    UnreadableRecording: it cannot be opened, is no regular file, or is larger.
    """
    with opened(path) as file:
        return _content(path, file, most_bytes, from_end)


def _content(path: Path, file: BinaryIO, most_bytes: int, from_end: bool) -> bytes:
    about = os.fstat(file.fileno())
    if about.st_size > most_bytes:
        if not from_end:
            raise _refused(path, f"has {about.st_size} bytes, more than the {most_bytes} that distdoctor writes there")
        file.seek(about.st_size - most_bytes)
    try:
        return file.read(most_bytes)
    except OSError as trouble:
        raise _refused(path, f"cannot be read: {trouble.strerror}") from trouble


def read_json(path: Path, most_bytes: int) -> Any:
    """The JSON document in a file.

    UnreadableRecording: as for `read_bytes`, or what it holds is no JSON that fits into memory.
    """
    content = read_bytes(path, most_bytes)
    try:
        return parse_json(content)
    except ValueError as trouble:
        raise _refused(path, f"holds no JSON that can be read: {str(trouble)[:200]}") from None


def _refused(path: Path, why: str) -> UnreadableRecording:
    return UnreadableRecording(f"{path} {why}", way_out=_WAY_OUT)


def write_whole(path: Path, text: str) -> None:
    """Write a file whole or not at all, for its owner alone. The draft is new, under a name that nobody can guess: no link that
    was laid there is followed."""
    draft = f".{path.name}.{secrets.token_hex(8)}"
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fd = os.open(draft, NEW, 0o600, dir_fd=folder)
        try:
            with open(fd, "w", encoding="utf-8", errors="backslashreplace") as file:
                file.write(text)
            os.replace(draft, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(draft, dir_fd=folder)
            raise
    finally:
        os.close(folder)
