"""Recordings that lie elsewhere (`s3://bucket/run`, any address that fsspec knows), brought here for as long as they are read.

Credentials and endpoints come from the environment and the user's own settings, as for every other program that uses fsspec.
"""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Any

from distdoctor.errors import CouldNotLook, NothingToInspect, UnreadableRecording, WrongUse

MOST_FILES = 200_000  # 100,000 ranks with a trace and what lies beside it
LARGEST_FILE = 1 << 30
MOST_BYTES = 64 << 30
BATCH_BYTES = 128 << 20  # that are on the way at once, and in memory
BATCH_FILES = 256
_TRACE = ".trace"
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_INSTALL = (
    "pip install 'distdoctor[remote]' brings fsspec with S3; other stores have packages of their own (gcsfs, adlfs)."
)


@dataclass(frozen=True)
class StoredFile:
    """One file over there, and what its path is below the place. `written_ns`: by the store's clock, 0 where it does not say."""

    path: str
    below: PurePosixPath
    size: int
    written_ns: int = 0


def is_address(place: str) -> bool:
    """Whether a place is `scheme://...` rather than a path."""
    return _ADDRESS.match(place) is not None


class TracesAfar:
    """The traces at an address: read when they are asked for, with the next ones in order, and not kept.

    On this machine an empty file stands for each.
    """

    def __init__(self, system: Any, notice: Callable[[str], None]) -> None:
        self._system, self._notice = system, notice
        self._files: dict[Path, StoredFile] = {}
        self._coming: dict[Path, bytes | str] = {}
        self._read = 0

    def stand_in(self, file: StoredFile, at: Path) -> None:
        at.parent.mkdir(parents=True, exist_ok=True)
        at.touch()
        self._files[at] = file

    def __contains__(self, path: Path) -> bool:
        return path in self._files

    def bytes_of(self, path: Path) -> bytes:
        """What a trace holds.

        UnreadableRecording: it cannot be read.
        """
        if path not in self._coming:
            self._fetch_from(path)
        content = self._coming.pop(path)
        if isinstance(content, str):
            raise UnreadableRecording(
                f"{self._files[path].path} cannot be read: {content}", way_out="Try again, or leave it out."
            )
        return content

    def _fetch_from(self, path: Path) -> None:
        """This one and those of the next ranks in the same start."""
        start = path.name.partition(".")[2]
        like_it = [one for one in self._files if one.parent == path.parent and one.name.partition(".")[2] == start]
        batch = next(_batches([self._files[one] for one in like_it[like_it.index(path) :]]))
        found = contents(self._system, batch)
        here = {file.path: one for one, file in self._files.items()}
        self._coming = {here[name]: content for name, content in found.items()}
        self._read += len(batch)
        if self._read < len(self._files):
            self._notice(f"{self._read} of {len(self._files)} traces are read")


@dataclass(frozen=True)
class Brought:
    """What is here of an address for a while: its small files at `path`, and its traces where they lie."""

    path: Path
    traces: TracesAfar


@contextlib.contextmanager
def brought_here(address: str, notice: Callable[[str], None]) -> Iterator[Brought]:
    """The folder or file at the address, as long as this lasts. Of traces, which are large, no copy is made.

    WrongUse: nobody here knows how to read such an address, or it holds more than a recording can. NothingToInspect: there is
    nothing. CouldNotLook: it cannot be read.
    """
    with tempfile.TemporaryDirectory(prefix="distdoctor-") as made:
        folder = Path(made).resolve()
        with in_one_sentence(address):
            system, root = opened(address)
            files = files_at(address, system, root)
            single = len(files) == 1 and files[0].below == PurePosixPath(".")
            traces = TracesAfar(system, notice)
            large = [file for file in files if file.path.endswith(_TRACE)]
            for file in large:
                traces.stand_in(file, _place(file, folder))
            missed = _fetch(system, [file for file in files if file not in large], folder, notice)
        if missed and len(missed) == len(files):
            raise CouldNotLook(f"{_shown(address)} cannot be read: {next(iter(missed.values()))}", way_out=_WAY_OUT)
        for path, why in list(missed.items())[:3]:
            notice(f"{path} cannot be read: {why}")
        yield Brought(folder / PurePosixPath(root).name if single else folder, traces)


def _place(file: StoredFile, folder: Path) -> Path:
    """Where a file stands on this machine."""
    return folder / (file.below if file.below.parts else PurePosixPath(file.path).name)


_WAY_OUT = "Check the address, and the credentials and endpoint that its program takes from the environment."


@contextlib.contextmanager
def in_one_sentence(address: str) -> Iterator[None]:
    """Whatever a storage library raises, as an error that a user can read."""
    from distdoctor.errors import DoctorError

    try:
        yield
    except DoctorError:
        raise
    except FileNotFoundError as trouble:
        raise NothingToInspect(f"there is nothing at {_shown(address)}", way_out=_WAY_OUT) from trouble
    except ImportError as trouble:
        raise WrongUse(f"{_shown(address)} cannot be read here: {_words(trouble)}", way_out=_INSTALL) from trouble
    except Exception as trouble:
        raise CouldNotLook(f"{_shown(address)} cannot be read: {_words(trouble)}", way_out=_WAY_OUT) from trouble


def opened(address: str) -> tuple[Any, str]:
    """The file system, and the place in its own words."""
    try:
        import fsspec
    except ImportError as trouble:
        raise WrongUse(f"{_shown(address)} needs fsspec", way_out=_INSTALL) from trouble
    scheme = address.partition("://")[0].lower()
    if scheme not in fsspec.available_protocols():
        raise WrongUse(
            f"there is no storage named {scheme}", way_out="fsspec.available_protocols() lists what there is."
        )
    system, root = fsspec.core.url_to_fs(address)
    return system, str(root).rstrip("/") or "/"


def files_at(address: str, system: Any, root: str) -> list[StoredFile]:
    """The files at and below a place, by path.

    FileNotFoundError: there is none. WrongUse: more than a recording can be.
    """
    found = []
    for path, about in system.find(root, detail=True).items():
        below = PurePosixPath(path).relative_to(root) if path != root else PurePosixPath(".")
        if about.get("type") == "file" and ".." not in below.parts:
            found.append(StoredFile(path, below, int(about.get("size") or 0), _written_ns(about)))
    if not found:
        raise FileNotFoundError(root)
    _require_bounds(address, found)
    return sorted(found, key=lambda one: one.path)


def _written_ns(about: Mapping[str, Any]) -> int:
    """Stores call it by their own names, and write it as a date or as seconds."""
    written = next((about[name] for name in ("LastModified", "last_modified", "mtime", "updated") if name in about), 0)
    if isinstance(written, datetime):
        written = written.timestamp()
    return int(written * 1e9) if isinstance(written, int | float) else 0


def _require_bounds(address: str, files: Sequence[StoredFile]) -> None:
    largest, total = max(files, key=lambda one: one.size), sum(one.size for one in files)
    way_out = "Point at the run folder itself, or copy what is to be examined."
    if len(files) > MOST_FILES:
        raise WrongUse(f"{_shown(address)} holds {len(files)} files, more than {MOST_FILES}", way_out=way_out)
    if largest.size > LARGEST_FILE:
        raise WrongUse(f"{largest.path} has {largest.size} bytes, more than any recording", way_out=way_out)
    if total > MOST_BYTES:
        raise WrongUse(f"{_shown(address)} holds {total >> 30} GiB, more than {MOST_BYTES >> 30}", way_out=way_out)


def _fetch(system: Any, files: Sequence[StoredFile], folder: Path, notice: Callable[[str], None]) -> Mapping[str, str]:
    """Write the files into the folder; what could not be read, with the reason."""
    missed: dict[str, str] = {}
    done = 0
    for batch in _batches(files):
        found = contents(system, batch)
        for one in batch:
            content = found[one.path]
            if isinstance(content, bytes):
                to = _place(one, folder)
                to.parent.mkdir(parents=True, exist_ok=True)
                to.write_bytes(content)
            else:
                missed[one.path] = content
        done += len(batch)
        if done < len(files):
            notice(f"{done} of {len(files)} files are here")
    return missed


def contents(system: Any, files: Sequence[StoredFile]) -> dict[str, bytes | str]:
    """The bytes of these files by path, all on the way at once; of one that cannot be read the reason."""
    found = system.cat([one.path for one in files], on_error="return")
    found = found if isinstance(found, dict) else {files[0].path: found}
    read: dict[str, bytes | str] = {}
    for one in files:
        content = found.get(one.path)
        if isinstance(content, bytes):
            read[one.path] = content
        else:
            read[one.path] = _words(content) if isinstance(content, BaseException) else "it is not there any more"
    return read


def _batches(files: Sequence[StoredFile]) -> Iterator[list[StoredFile]]:
    batch: list[StoredFile] = []
    for one in files:
        if batch and (len(batch) == BATCH_FILES or sum(f.size for f in batch) + one.size > BATCH_BYTES):
            yield batch
            batch = []
        batch.append(one)
    if batch:
        yield batch


def _words(trouble: BaseException) -> str:
    first = (str(trouble).splitlines() or [""])[0][:200]
    return f"{type(trouble).__name__}: {first}".rstrip(": ")


def _shown(address: str) -> str:
    """The address without a name or password that it may hold."""
    return re.sub(r"//[^/@]*@", "//", address)
